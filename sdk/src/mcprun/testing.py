"""A real mesh for tests: every process of it, on a free port, in folders of its own.

with Mesh(Path("models")) as mesh:
    httpx.post(f"{mesh.http_url}/v2/models/colors/infer", json=...)
"""

import asyncio
import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from mcprun.supervisor.events import Died, Event, Logged
from mcprun.supervisor.folders import RunFolders, private_folder
from mcprun.supervisor.launch import Launch
from mcprun.supervisor.plan import Listening, ProcessPlan
from mcprun.supervisor.ports import free_port
from mcprun.supervisor.state import ProcessStatus
from mcprun.supervisor.supervisor import Supervisor
from mcprun.workspace import Workspace

ResultT = TypeVar("ResultT")

_POLL_SECONDS = 0.02
_TAIL_LINES = 10
_TAIL_CHARACTERS = 400


class MeshFailed(Exception):
    """The mesh did not start, or is not what was waited for. The message holds the last lines of each process's log."""


class Mesh:
    """A mesh that runs while this context manager is entered. Its supervisor works in a thread of this process.

    `models` is a model repository. `settings` holds what mcprun.yaml may hold, such as `{"max_message_bytes": 1048576,
    "batcher": {"worker_grace_seconds": 1}}`. With `wasm` the edge filter guards it, which takes some seconds more to start.
    Entering waits until the mesh is ready, unless `wait` is false. Leaving drains it. Not for use from several threads at the
    same time, except for what only reads.
    """

    def __init__(
        self,
        models: Path,
        *,
        workers: int = 1,
        wasm: bool = False,
        settings: Mapping[str, Any] | None = None,
        port: int = 0,
        start_timeout: float = 60.0,
        wait: bool = True,
        plans: Callable[[RunFolders, Listening], list[ProcessPlan]] | None = None,
    ) -> None:
        values = {"log_level": "info", **(settings or {})}
        self._workspace = Workspace.model_validate(values)
        self._models = models.resolve()
        self._workers = workers
        self._wasm = wasm
        self._listening = Listening("127.0.0.1", port or free_port())
        self._start_timeout = start_timeout
        self._wait = wait
        self._plans = plans
        self._folder = Path(tempfile.mkdtemp(prefix="t", dir=private_folder()))
        self._folders = RunFolders(self._folder / "data", self._folder / "s")
        self._supervisor: Supervisor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self.events: list[Event] = []
        """What the supervisor told, in order."""

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="mcprun-mesh", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self.stop()
            raise MeshFailed(f"the mesh cannot start: {self._failure}") from self._failure
        if self._wait:
            try:
                self.wait_ready(self._start_timeout)
            except BaseException:
                self.stop()
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def http_url(self) -> str:
        """Where HTTP clients reach it, such as http://127.0.0.1:41234."""
        return self._listening.url

    @property
    def grpc_target(self) -> str:
        """Where gRPC clients reach it, HOST:PORT."""
        return self._listening.target

    @property
    def router_grpc(self) -> str:
        """The router's gRPC server, past the edge: unix:PATH."""
        return self._folders.socket("router-grpc")

    @property
    def router_http_socket(self) -> Path:
        """The socket of the router's HTTP server, past the edge."""
        return Path(self._folders.socket("router-http").removeprefix("unix:"))

    @property
    def edge_admin_socket(self) -> Path:
        """The socket of the edge's admin interface."""
        return Path(self._folders.socket("edge-admin").removeprefix("unix:"))

    @property
    def edge_status_socket(self) -> Path:
        """The socket where the edge filter tells its state."""
        return Path(self._folders.socket("edge-status").removeprefix("unix:"))

    @property
    def data_folder(self) -> Path:
        """Where its logs and its state file are. It is removed when the mesh stops."""
        return self._folders.data

    def target(self, name: str) -> str:
        """The gRPC target of a process, such as `batcher` or `worker-2`."""
        return self._status(name).address

    @property
    def process_names(self) -> list[str]:
        """The names of its processes, such as kvcache, batcher, worker, router, edge; several workers are worker-1 and so on."""
        return [status.name for status in self._running().state.processes]

    def pid(self, name: str) -> int:
        """The process id. Raises MeshFailed when the process does not run now."""
        pid = self._status(name).pid
        if pid is None:
            raise MeshFailed(f"{name} does not run now")
        return pid

    def restarts(self, name: str) -> int:
        """How often a process was started again."""
        return self._status(name).restarts

    def kill(self, name: str, signal: int) -> None:
        """Sends a signal to a process; one that dies of it is started again. Raises MeshFailed when it does not run now."""
        supervisor = self._running()

        def send() -> None:
            try:
                supervisor.signal(name, signal)
            except KeyError:
                raise MeshFailed(f"{name} does not run now") from None

        self._call(send)

    def wait_restarted(self, name: str, *, restarts: int, timeout: float = 30.0) -> None:
        """Returns once a process was started again more than `restarts` times and runs."""
        self.wait_until(
            lambda: self._status(name).restarts > restarts and self._status(name).pid is not None, f"{name} restarted", timeout=timeout
        )

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Returns once the mesh says that it is ready. Raises MeshFailed when it is not within `timeout` seconds."""
        with httpx.Client(base_url=self.http_url, timeout=5.0, trust_env=False) as client:

            def ready() -> bool:
                try:
                    return self._running().state.ready and client.get("/v2/health/ready").status_code == httpx.codes.OK
                except httpx.TransportError:
                    return False

            self.wait_until(ready, "the mesh ready", timeout=timeout)

    def wait_until(self, condition: Callable[[], bool], what: str, *, timeout: float = 30.0) -> None:
        """Returns once a condition holds. Raises MeshFailed when it does not within `timeout` seconds, or the mesh failed."""
        end = time.monotonic() + timeout
        while not condition():
            if self._failure is not None:
                raise MeshFailed(f"{self._failure}\n{self._tails()}") from self._failure
            if time.monotonic() > end:
                raise MeshFailed(f"waited {timeout} s in vain for {what}\n{self._tails()}")
            time.sleep(_POLL_SECONDS)

    def metrics(self, name: str) -> str:
        """The Prometheus metrics of a process, as text."""
        if name == "edge":
            transport = httpx.HTTPTransport(uds=str(self.edge_admin_socket))
            with httpx.Client(transport=transport, base_url="http://edge", timeout=10.0) as client:
                return client.get("/stats/prometheus").raise_for_status().text
        self.wait_until(lambda: bool(self._status(name).metrics_address), f"the metrics of {name}", timeout=10.0)
        address = self._status(name).metrics_address
        return httpx.get(f"http://{address}/metrics", timeout=10.0, trust_env=False).raise_for_status().text

    def logs(self, name: str) -> str:
        """What a process wrote so far."""
        try:
            return self._folders.log(name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def request_stop(self) -> None:
        """Tells the mesh to stop, as Ctrl-C does, and returns at once; the second time it ends without draining."""
        self._call(self._running().stop)

    def stop(self) -> None:
        """Drains the mesh, unless it is draining already, and returns once it has ended. The second time it does nothing."""
        supervisor, thread = self._supervisor, self._thread
        if thread is not None and thread.is_alive():
            if supervisor is not None and not supervisor.stopping:
                # The loop may end by itself just now.
                with contextlib.suppress(RuntimeError, TimeoutError):
                    self._call(supervisor.stop)
            thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def tell(self, event: Event) -> None:
        """Takes what the supervisor tells."""
        if not isinstance(event, Logged) or event.line.level == "error":
            self.events.append(event)

    @property
    def deaths(self) -> list[Died]:
        """Every death of a process so far."""
        return [event for event in self.events if isinstance(event, Died)]

    def _run(self) -> None:
        try:
            asyncio.run(self._supervise())
        except BaseException as error:
            # It is raised again where the mesh is waited for.
            self._failure = error
        finally:
            self._started.set()

    async def _supervise(self) -> None:
        launch = Launch(self._workspace, self._models, self._folders, self._listening, self._workers, wasm=self._wasm)
        plans = self._plans(self._folders, self._listening) if self._plans else None
        self._supervisor = launch.supervisor(self, plans)
        self._loop = asyncio.get_running_loop()
        self._started.set()
        await self._supervisor.run()

    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise MeshFailed("the mesh does not run: enter its context first")
        return self._supervisor

    def _status(self, name: str) -> ProcessStatus:
        for status in self._running().state.processes:
            if status.name == name:
                return status
        raise MeshFailed(f"there is no process {name!r}, only {', '.join(self.process_names)}")

    def _call(self, function: Callable[[], ResultT]) -> ResultT:
        """Runs a function in the supervisor's thread."""

        async def call() -> ResultT:
            return function()

        if self._loop is None:
            raise MeshFailed("the mesh does not run: enter its context first")
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(timeout=10.0)

    def _tails(self) -> str:
        """The last lines of each log, cut short."""
        if self._supervisor is None:
            return ""
        return "\n".join(
            "\n".join([f"--- {name}", *(line[:_TAIL_CHARACTERS] for line in self.logs(name).splitlines()[-_TAIL_LINES:])])
            for name in self.process_names
        )
