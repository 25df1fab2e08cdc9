"""Which processes the mesh has on one machine."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mcprun.supervisor.folders import RunFolders

SERVICES = ("kvcache", "batcher", "worker", "router", "edge")
"""In the order in which they start."""


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process."""

    name: str
    command: tuple[str, ...]
    stage: int
    """Processes start from the lowest stage to the highest and stop the other way round; those of one stage stop together."""
    stop_seconds: float
    """How long it may take to stop before it is killed."""
    address: str = ""
    """Where it is reached, for `mcprun status`."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Where clients reach the mesh."""

    host: str
    port: int

    @property
    def reachable_host(self) -> str:
        """A host that a client on this machine can use."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    @property
    def target(self) -> str:
        """HOST:PORT."""
        host = self.reachable_host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://{self.target}"


class MissingService(Exception):
    """Console scripts of services are not installed beside this interpreter."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"not installed: {', '.join(f'mcprun-{name}' for name in names)}")
        self.names = tuple(names)


def find_scripts() -> dict[str, Path]:
    """The console script of each service, beside this interpreter. Raises MissingService."""
    folder = Path(sys.executable).parent
    found = {name: folder / f"mcprun-{name}" for name in SERVICES}
    missing = [name for name, script in found.items() if not script.is_file()]
    if missing:
        raise MissingService(missing)
    return found


def plan(
    scripts: dict[str, Path],
    *,
    folders: RunFolders,
    listening: Listening,
    models: Path,
    workers: int,
    wasm: bool = True,
    drain_seconds: float = 20.0,
) -> list[ProcessPlan]:
    """The processes of a mesh, in the order in which they start."""
    common = ("--config", str(folders.services_config), "--metrics-address", "127.0.0.1:0")
    sockets = {name: folders.socket(name) for name in ("kvcache", "batcher", "router-http", "router-grpc", "edge-admin", "edge-status")}
    bound = drain_seconds + 5

    def process(name: str, stage: int, *arguments: str, address: str, number: str = "") -> ProcessPlan:
        command = (str(scripts[name]), *arguments, *common)
        return ProcessPlan(f"{name}{number}", command, stage, bound, address=address)

    numbers = [""] if workers == 1 else [f"-{number}" for number in range(1, workers + 1)]
    return [
        process("kvcache", 0, "--grpc-address", sockets["kvcache"], address=sockets["kvcache"]),
        process("batcher", 1, "--grpc-address", sockets["batcher"], address=sockets["batcher"]),
        *(
            process(
                "worker",
                2,
                *("--grpc-address", folders.socket(f"worker{number}")),
                *("--batcher-address", sockets["batcher"]),
                *("--kvcache-address", sockets["kvcache"]),
                *("--models", str(models)),
                address=folders.socket(f"worker{number}"),
                number=number,
            )
            for number in numbers
        ),
        process(
            "router",
            3,
            *("--http-address", sockets["router-http"]),
            *("--grpc-address", sockets["router-grpc"]),
            *("--batcher-address", sockets["batcher"]),
            address=sockets["router-grpc"],
        ),
        process(
            "edge",
            4,
            *("--listen-host", listening.host),
            *("--listen-port", str(listening.port)),
            *("--router-http", sockets["router-http"]),
            *("--router-grpc", sockets["router-grpc"]),
            *("--admin-address", sockets["edge-admin"]),
            *("--status-address", sockets["edge-status"]),
            *("--runtime-dir", str(folders.edge_runtime)),
            *(() if wasm else ("--no-wasm",)),
            address=listening.url,
        ),
    ]
