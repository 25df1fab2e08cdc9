"""The edge's process: renders the configuration, runs Envoy with it, and drains it at the end."""

import asyncio
import os
import sys

from mcprun.edge.delivery import FILTER_FOLDER
from mcprun.runtime import logs, metrics, process
from mcprun.runtime.telemetry import Telemetry
from mcprun.supervisor.folders import private_folder
from mcprun.supervisor.ports import obstacle
from mcprun_edge.configuration import render
from mcprun_edge.delivery import Delivery, NotDelivered
from mcprun_edge.envoy import Envoy, find_binary
from mcprun_edge.settings import EdgeSettings
from mcprun_edge.statistics import EnvoyStatistics

_log = logs.get_logger(__name__)


async def serve(settings: EdgeSettings, telemetry: Telemetry, stop: process.Stop) -> None:
    """Runs Envoy until `stop` is requested.

    Raises SystemExit with Envoy's exit code when it ends by itself, or with 1 when the edge filter cannot be had; OSError when
    Envoy cannot listen or be run.
    """
    # Two Envoys could listen at one port and each get a part of the connections; nobody wants that by accident.
    if why := obstacle(settings.listen_host, settings.listen_port):
        raise OSError(why)
    folder = settings.runtime_dir or private_folder() / f"edge-{settings.listen_port}"
    folder.mkdir(parents=True, exist_ok=True)
    filter_folder = (folder / FILTER_FOLDER).resolve()
    delivery = Delivery(settings, filter_folder) if settings.wasm else None
    configuration = folder / "envoy.yaml"
    configuration.write_text(render(settings, filter_folder=filter_folder), encoding="utf-8")
    try:
        if delivery is not None:
            await asyncio.to_thread(delivery.prepare)
    except NotDelivered as error:
        raise _cannot_serve(error) from error
    envoy = await Envoy.start(
        find_binary(settings.envoy_binary),
        configuration,
        admin_address=settings.admin_address,
        concurrency=settings.concurrency or max(1, len(os.sched_getaffinity(0)) // 2),
        log_level=settings.effective_log_level,
        log_format=settings.log_format,
    )
    if settings.admin_address:
        metrics.REGISTRY.register(EnvoyStatistics(settings.admin_address))
    ended = asyncio.create_task(envoy.wait())
    stopped = asyncio.create_task(stop.wait())
    delivered = asyncio.create_task(_deliver(settings, delivery, envoy))
    try:
        await asyncio.wait((ended, stopped, delivered), return_when=asyncio.FIRST_COMPLETED)
        if delivered.done():
            delivered.result()
        if ended.done():
            code = ended.result()
            _log.error("envoy ended by itself", exit_code=code)
            raise SystemExit(code if code >= 0 else 128 - code)
        await envoy.drain(settings.drain_seconds)
    finally:
        stopped.cancel()
        delivered.cancel()
        await envoy.end()
        await asyncio.gather(ended, stopped, delivered, return_exceptions=True)


async def _deliver(settings: EdgeSettings, delivery: Delivery | None, envoy: Envoy) -> None:
    """Says when clients are served, and keeps the edge filter as it is wanted. Raises SystemExit when it cannot be had."""
    try:
        if delivery is not None:
            await delivery.confirm(envoy if settings.admin_address else None)
    except NotDelivered as error:
        raise _cannot_serve(error) from error
    _log.info("serving", host=settings.listen_host, port=settings.listen_port, wasm=settings.wasm)
    if delivery is not None:
        await delivery.watch()
    await asyncio.get_running_loop().create_future()


def _cannot_serve(error: NotDelivered) -> SystemExit:
    _log.error("the edge filter cannot be had", reason=str(error))
    return SystemExit(1)


def main() -> None:
    """The console script `mcprun-edge`."""
    if "--print-config" in sys.argv[1:]:
        print(render(EdgeSettings.load(sys.argv[1:])), end="")
        return
    process.run(EdgeSettings, serve)
