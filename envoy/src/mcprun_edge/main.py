"""The edge's process: renders the configuration, runs Envoy with it, and drains it at the end."""

import asyncio
import os
import sys
from pathlib import Path

from mcprun.runtime import logs, process
from mcprun.runtime.telemetry import Telemetry
from mcprun.supervisor.folders import private_folder
from mcprun.supervisor.ports import obstacle
from mcprun_edge.configuration import render
from mcprun_edge.envoy import Envoy, find_binary
from mcprun_edge.settings import EdgeSettings

_log = logs.get_logger(__name__)


async def serve(settings: EdgeSettings, telemetry: Telemetry, stop: process.Stop) -> None:
    """Runs Envoy until `stop` is requested.

    Raises SystemExit with Envoy's exit code when it ends by itself, OSError when it cannot listen or be run.
    """
    # Two Envoys could listen at one port and each get a part of the connections; nobody wants that by accident.
    if why := obstacle(settings.listen_host, settings.listen_port):
        raise OSError(why)
    envoy = await Envoy.start(
        find_binary(settings.envoy_binary),
        _write_configuration(settings),
        admin_address=settings.admin_address,
        concurrency=settings.concurrency or max(1, len(os.sched_getaffinity(0)) // 2),
        log_level=settings.effective_log_level,
        log_format=settings.log_format,
    )
    _log.info("serving", host=settings.listen_host, port=settings.listen_port)
    ended = asyncio.create_task(envoy.wait())
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            code = ended.result()
            _log.error("envoy ended by itself", exit_code=code)
            raise SystemExit(code if code >= 0 else 128 - code)
        await envoy.drain(settings.drain_seconds)
    finally:
        stopped.cancel()
        await envoy.end()
        await asyncio.gather(ended, stopped, return_exceptions=True)


def _write_configuration(settings: EdgeSettings) -> Path:
    folder = settings.runtime_dir or private_folder() / f"edge-{settings.listen_port}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "envoy.yaml"
    path.write_text(render(settings), encoding="utf-8")
    return path


def main() -> None:
    """The console script `mcprun-edge`."""
    if "--print-config" in sys.argv[1:]:
        print(render(EdgeSettings.load(sys.argv[1:])), end="")
        return
    process.run(EdgeSettings, serve)
