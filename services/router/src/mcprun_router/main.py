"""The router's process."""

import asyncio

from mcprun.errors import MessageTooLarge
from mcprun.protocol.v1 import batcher_pb2
from mcprun.runtime import logs, process, rpc
from mcprun.runtime.telemetry import Telemetry
from mcprun_router.asgi import Application, Departures
from mcprun_router.bridge import Bridge
from mcprun_router.catalog import Catalog
from mcprun_router.dataplane import Dataplane
from mcprun_router.grpc_server import SERVICES, STREAMS, InferenceHandler
from mcprun_router.health import Overview
from mcprun_router.http_server import HttpServer
from mcprun_router.link import BatcherLink, Limits
from mcprun_router.methods import Methods
from mcprun_router.metrics import open_requests
from mcprun_router.operation import Operations
from mcprun_router.rest import Rest
from mcprun_router.settings import RouterSettings

_log = logs.get_logger(__name__)

_HEALTH_SECONDS = 0.1


async def serve(settings: RouterSettings, telemetry: Telemetry, stop: process.Stop) -> None:
    """Serves until `stop` is requested and what was accepted is answered, at most `drain_seconds` later."""
    catalog = Catalog()

    def learn(told: batcher_pb2.Catalog) -> None:
        catalog.update(told)
        _log.debug("catalogue changed", models=len(told.models), workers=len(told.workers), settled=told.settled)

    link = BatcherLink(
        settings.batcher_address,
        limits=Limits(
            max_message_bytes=settings.max_message_bytes,
            max_open_requests=settings.max_open_requests,
            max_open_bytes=settings.max_open_bytes,
            connect_seconds=settings.connect_seconds,
        ),
        on_catalog=learn,
    )
    open_requests.set_function(lambda: link.open_requests)
    dataplane = Dataplane(settings, catalog, link)
    methods = Methods(dataplane)
    operations = Operations(telemetry)
    departures = Departures()
    too_large = MessageTooLarge(settings.max_message_bytes)
    bridge = Bridge(methods, operations, too_large)
    application = Application(
        bridge=bridge,
        rest=Rest(dataplane, Overview(dataplane), operations),
        too_large=too_large,
        departures=departures,
    )
    http = HttpServer(application, settings.http_address, bridge=bridge, too_large=too_large, drain_seconds=settings.drain_seconds)
    health = rpc.Health()
    grpc_server = await rpc.server(
        settings.grpc_address,
        max_message_bytes=settings.max_message_bytes,
        health_state=health,
        services=SERVICES,
        streams=STREAMS,
        telemetry=telemetry,
    )
    grpc_server.add_generic_rpc_handlers((InferenceHandler(dataplane, methods, operations),))

    async with asyncio.TaskGroup() as background:
        tasks = [
            background.create_task(link.run()),
            background.create_task(departures.run()),
            background.create_task(_report(dataplane, health)),
        ]
        await grpc_server.start()
        serving = background.create_task(http.serve())
        _log.info("serving", http=settings.http_address, grpc=settings.grpc_address)
        await stop.wait()
        _log.info("draining", open_requests=link.open_requests)
        tasks.pop().cancel()
        await health.set(False)
        http.should_exit = True
        await asyncio.gather(serving, grpc_server.stop(grace=settings.drain_seconds))
        for task in tasks:
            task.cancel()


async def _report(dataplane: Dataplane, health: rpc.Health) -> None:
    """Keeps grpc.health.v1 at what the dataplane says."""
    while True:
        ready = dataplane.ready()
        if ready != health.serving:
            await health.set(ready)
            await health.set(ready, SERVICES[0])
        await asyncio.sleep(_HEALTH_SECONDS)


def main() -> None:
    """The console script `mcprun-router`."""
    process.run(RouterSettings, serve)
