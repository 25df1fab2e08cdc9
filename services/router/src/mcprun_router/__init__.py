"""The router of the mcprun inference mesh.

The core knows neither HTTP nor gRPC:
- `catalog`: which models there are, and which version a request means
- `validation`: whether a request fits its model
- `contents`: typed tensor contents to raw bytes
- `shared_memory`: tensors in regions that clients registered
- `classification`: the k best classes of an output
- `link`: the stream to the batcher
- `dataplane`: every operation of the protocol, over all of the above

The transports are thin:
- `methods`: the unary gRPC methods as functions of bytes
- `grpc_server`: they and the streaming ones on grpc.aio
- `bridge`: the unary ones as HTTP/1.1 POSTs, as Envoy's reverse bridge sends them
- `bridge_protocol`: the same past ASGI, for the hot path
- `rest`, `rest_codec`: REST, with JSON and binary tensors
- `asgi`, `http_server`: what uvicorn serves
- `health`, `metrics`, `settings`, `main`: the process
"""

import mcprun.runtime  # noqa: F401  # before grpc, which it sets up
