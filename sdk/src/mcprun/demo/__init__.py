"""The demo models: real ones, out of installed packages.

- `models`: writes the demo's model repository
- `sources`: finds the packages' files without importing the packages
- `resnet`: the ResNet-50 graph with made-up weights
"""
