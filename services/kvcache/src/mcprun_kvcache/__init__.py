"""The kvcache of the mcprun inference mesh.

- `geometry`: what a model's keys and values look like, and how large a slot is
- `pool`: slots and their leases; no I/O and no clock of its own
- `arena`: the sparse file of shared memory
- `table`: what must survive a restart, kept in the arena itself
- `store`: pools, arena and table together
- `metrics`, `service`, `settings`, `main`: the process
"""

import mcprun.runtime  # noqa: F401  # before grpc, which it sets up
