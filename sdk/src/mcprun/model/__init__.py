"""What a model is to its user: `model.yaml` and the folder around it.

- `config`: model.yaml
- `steps`: the steps of preprocess and postprocess chains
- `normalise`: from what people may write to the one form that the rest reads
- `fields`: kinds of values
- `schema`: the JSON schema
- `repository`: a folder of models
"""
