"""What the supervisor tells while it works."""

from dataclasses import dataclass
from typing import Protocol

from mcprun.supervisor.logfile import LogLine


@dataclass(frozen=True, slots=True)
class Started:
    """A process was started."""

    name: str
    pid: int
    restarts: int


@dataclass(frozen=True, slots=True)
class Died:
    """A process ended that was not told to."""

    name: str
    pid: int
    how: str
    """Such as `killed by SIGKILL` or `ended with exit code 1`."""
    last_line: str
    """Its last log line, in short form; empty when it wrote none."""
    wait_seconds: float
    """After which it is started again."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A process wrote a warning or an error."""

    name: str
    line: LogLine


@dataclass(frozen=True, slots=True)
class Waiting:
    """The processes run; the mesh is not ready yet, and `reason` says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The mesh is ready, for the first time in this run."""

    seconds: float
    """Since the start."""


@dataclass(frozen=True, slots=True)
class Draining:
    """The mesh was told to stop."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """A process is told to stop."""

    name: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """A process that was told to stop has ended; `killed` when it had to be."""

    name: str
    killed: bool


Event = Started | Died | Logged | Waiting | Ready | Draining | Stopping | Stopped


class Reporter(Protocol):
    """Where events go."""

    def tell(self, event: Event) -> None:
        """Takes one event. It must not block for long."""
