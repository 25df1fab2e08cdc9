"""Runs the mesh's processes on one machine: starts them in order, restarts what dies, drains them on stop.

- `plan`: which processes there are, with their commands and addresses
- `folders`: where sockets, logs and the state of a run are
- `child`: one process and its output
- `shim`: makes a child end with the supervisor
- `logfile`: bounded log files, and what is worth showing of them
- `backoff`: how long to wait before a restart
- `state`: what `mcprun status` reads
- `ports`: who listens where
- `readiness`: when the mesh is ready
- `events`: what the supervisor tells while it works
- `supervisor`: the whole
"""
