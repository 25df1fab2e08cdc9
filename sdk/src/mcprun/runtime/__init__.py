"""What every service is built on: settings, logging, telemetry, metrics, gRPC servers and channels, start and stop.

- `settings`: typed settings from flags, environment and file
- `logs`: structured JSON logs
- `telemetry`: OpenTelemetry traces and W3C context
- `metrics`: Prometheus metrics and their endpoint
- `rpc`: gRPC servers, channels and addresses
- `health`: the state behind grpc.health.v1
- `breaker`: circuit breakers around calls to another service
- `outbox`: messages for one stream, joined a turn of the event loop at a time
- `process`: start, signals, drain and exit code

It must be imported before grpc, which reads the environment as soon as it is.
"""

import os

# gRPC's event engine hands each read to a thread of its own, which hands it to the one that Python polls with. Between processes that
# exchange small messages these hand-overs are a third of the CPU time; without it the polling thread reads by itself.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener,-event_engine_callback_cq")
