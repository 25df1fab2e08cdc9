"""The command line `mcprun`.

- `app`: the commands and their options; what they do is imported when they run, so that `mcprun --help` is quick
- `failure`: exit codes
- `output`: tables and JSON
- `mesh_client`: REST calls of a running mesh
- `initialise`, `serve`, `console`, `examples`, `infer`, `tensors`, `models`, `status`, `doctor`: one command each, with what only it needs
"""

from mcprun.cli.app import main

__all__ = ["main"]
