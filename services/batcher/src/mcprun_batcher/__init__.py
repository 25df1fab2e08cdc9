"""The batcher of the mcprun inference mesh.

- `deadlines`: which waiting calls have run out of time
- `queue`: the queue of one model version and the rules by which a batch closes
- `scheduler`: all queues, all workers, and what goes where; no I/O and no clock of its own
- `catalog`: which model versions exist and in what state
- `statistics`: what each model version has done
- `metrics`: the same for Prometheus
- `broker`: the running batcher: the scheduler with its clock, streams and commands
- `service`: the gRPC services over the broker
- `settings`, `main`: the process
"""

import mcprun.runtime  # noqa: F401  # before grpc, which it sets up
