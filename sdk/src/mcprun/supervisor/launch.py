"""From a workspace to a supervisor that is ready to run."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from mcprun.supervisor.events import Reporter
from mcprun.supervisor.folders import RunFolders
from mcprun.supervisor.plan import Listening, ProcessPlan, find_scripts, plan
from mcprun.supervisor.ports import obstacle
from mcprun.supervisor.readiness import mesh_ready
from mcprun.supervisor.state import RunState
from mcprun.supervisor.supervisor import Supervisor
from mcprun.workspace import Workspace


class AddressTaken(Exception):
    """The mesh cannot listen where it should; the message says why, such as by which process the port is taken."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What one run of a mesh is made of."""

    workspace: Workspace
    models: Path
    """The model repository."""
    folders: RunFolders
    listening: Listening
    workers: int
    wasm: bool = True
    """Whether the edge filter guards the mesh."""

    def check(self) -> None:
        """Raises MissingService when services are not installed, AddressTaken when the mesh cannot listen where it should."""
        find_scripts()
        taken = obstacle(self.listening.host, self.listening.port)
        if taken is not None:
            raise AddressTaken(taken)

    def supervisor(self, reporter: Reporter, plans: list[ProcessPlan] | None = None) -> Supervisor:
        """Makes the folders and the services' configuration, and the supervisor. Call it with the run's lock held.

        `plans` takes the place of the mesh's own processes, for tests. Raises MissingService, FolderError.
        """
        if plans is None:
            plans = plan(
                find_scripts(),
                folders=self.folders,
                listening=self.listening,
                models=self.models,
                workers=self.workers,
                wasm=self.wasm,
                drain_seconds=self._drain_seconds(),
            )
        self.folders.prepare()
        self.workspace.write_services_config(self.folders.services_config)
        state = RunState(pid=os.getpid(), url=self.listening.url, started_at=time.time(), models=str(self.models))
        return Supervisor(plans, folders=self.folders, state=state, ready=mesh_ready(self.listening.url), reporter=reporter)

    def _drain_seconds(self) -> float:
        """The longest that any service may take to drain."""
        sections = (self.workspace.router, self.workspace.batcher, self.workspace.worker, self.workspace.kvcache)
        values = [section.get("drain_seconds") for section in sections]
        return max([20.0, *(float(value) for value in values if isinstance(value, int | float))])
