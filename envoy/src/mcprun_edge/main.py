"""The edge's process: renders the configuration, runs Envoy with it, and drains it at the end."""

import asyncio
import os
import sys

from mcprun.runtime import logs, process
from mcprun.runtime.telemetry import Telemetry
from mcprun_edge.configuration import render
from mcprun_edge.envoy import Envoy, binary
from mcprun_edge.settings import EdgeSettings

_log = logs.get_logger(__name__)


async def serve(settings: EdgeSettings, telemetry: Telemetry, stop: process.Stop) -> None:
    """Runs Envoy until `stop` is requested. Raises RuntimeError when Envoy ends by itself."""
    settings.runtime_dir.mkdir(parents=True, exist_ok=True)
    configuration = settings.runtime_dir / "envoy.yaml"
    configuration.write_text(render(settings))
    envoy = await Envoy.start(
        binary(settings.envoy_binary),
        configuration,
        admin_address=settings.admin_address,
        concurrency=settings.concurrency or max(1, len(os.sched_getaffinity(0)) // 2),
        level={"debug": "info"}.get(settings.effective_log_level, settings.effective_log_level),
    )
    _log.info("serving", host=settings.listen_host, port=settings.listen_port)
    ended = asyncio.create_task(envoy.wait())
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise RuntimeError(f"envoy ended by itself with code {ended.result()}; its log says why")
        await envoy.drain(settings.drain_seconds)
    finally:
        stopped.cancel()
        await envoy.end()
        await asyncio.gather(ended, stopped, return_exceptions=True)


def main() -> None:
    """The console script `mcprun-edge`."""
    if "--print-config" in sys.argv[1:]:
        print(render(EdgeSettings.load(sys.argv[1:])), end="")
        return
    process.run(EdgeSettings, serve)
