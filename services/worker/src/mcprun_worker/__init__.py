"""The worker of the mcprun inference mesh.

- `backends`: what runs a model file; found by entry points
- `chain`: preprocess and postprocess steps, and the pipeline that joins them to a graph
- `version`: one loaded model version
- `repository`: the model folders, and when they changed
- `execution`: a batch from its bytes to its answers
- `models`: the loaded versions, their threads and their credits
- `attachment`: the stream to the batcher
- `kvcache`: whether the host's kvcache answers
- `metrics`, `settings`, `main`: the process
"""

import mcprun.runtime  # noqa: F401  # before grpc, which it sets up
