"""What runs now: a JSON file that `mcprun status` reads, and a lock that keeps a second mesh out of the same workspace."""

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, Self

ProcessState = Literal["starting", "running", "waiting", "stopping", "stopped"]


@dataclass(slots=True)
class ProcessStatus:
    """One process of the mesh."""

    name: str
    state: ProcessState = "starting"
    pid: int | None = None
    restarts: int = 0
    started_at: float | None = None
    """Unix time in seconds."""
    address: str = ""
    metrics_address: str = ""
    """HOST:PORT of its Prometheus endpoint, empty when it is not known."""
    log: str = ""
    last_death: str = ""
    """How it last died; empty when it never did."""


@dataclass(slots=True)
class RunState:
    """One run of the mesh."""

    pid: int
    """The supervisor's."""
    url: str
    started_at: float
    """Unix time in seconds."""
    models: str
    """The model repository."""
    ready: bool = False
    """Whether the whole mesh was ready once."""
    processes: list[ProcessStatus] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Replaces the file in one step, so that a reader never sees half of it."""
        half = path.with_name(f".{path.name}.{os.getpid()}")
        half.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        half.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The state of the run; None when there is no file, or none that this version understands."""
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            processes = [ProcessStatus(**process) for process in values.pop("processes")]
            return cls(processes=processes, **values)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


class AlreadyRunning(Exception):
    """The mesh of this workspace runs already."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(f"the mesh of this workspace runs already{f', its supervisor is pid {pid}' if pid else ''}")
        self.pid = pid


class RunLock:
    """Held by the supervisor. The kernel frees it when the supervisor ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Takes the lock. Raises AlreadyRunning."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            text = file.read().strip()
            file.close()
            raise AlreadyRunning(int(text) if text.isdigit() else None) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Lets the lock go."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def held(self) -> bool:
        """Whether a mesh of this workspace runs, in this process or in another."""
        try:
            with self._path.open(encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False
