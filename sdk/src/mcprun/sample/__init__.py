"""What `mcprun init` copies into a new workspace. `sdk/make_sample.py` makes the model."""
