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
"""
