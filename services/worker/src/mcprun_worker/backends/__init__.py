"""What runs a model file.

- `base`: the contract of a backend, and how backends are found
- `onnxruntime`: ONNX files on ONNX Runtime
"""
