"""The batcher's process."""

import asyncio

from mcprun.protocol.v1 import admin_pb2_grpc, batcher_pb2_grpc, worker_pb2_grpc
from mcprun.runtime import logs, process, rpc
from mcprun.runtime.telemetry import Telemetry
from mcprun_batcher.broker import Broker
from mcprun_batcher.service import SERVICES, STREAMS, AdminService, BatcherService, WorkerGatewayService
from mcprun_batcher.settings import BatcherSettings

_log = logs.get_logger(__name__)


async def serve(settings: BatcherSettings, telemetry: Telemetry, stop: process.Stop) -> None:
    """Serves until `stop` is requested and what was accepted has ended, at most `drain_seconds` later."""
    broker = Broker(
        grace=settings.worker_grace_seconds,
        command_seconds=settings.command_seconds,
        max_bytes=settings.max_message_bytes,
        telemetry=telemetry,
    )
    health = rpc.Health()
    server = await rpc.server(
        settings.grpc_address,
        max_message_bytes=settings.max_message_bytes,
        health_state=health,
        services=SERVICES,
        streams=STREAMS,
        telemetry=telemetry,
    )
    batcher_pb2_grpc.add_BatcherServicer_to_server(BatcherService(broker), server)
    worker_pb2_grpc.add_WorkerGatewayServicer_to_server(WorkerGatewayService(broker), server)
    admin_pb2_grpc.add_AdminServicer_to_server(AdminService(broker), server)
    await server.start()
    await health.set(True)
    _log.info("serving", address=settings.grpc_address)
    await stop.wait()
    _log.info("draining")
    await health.set(False)
    try:
        async with asyncio.timeout(settings.drain_seconds):
            await broker.drain()
    except TimeoutError:
        _log.warning("stopped with requests unfinished", after_seconds=settings.drain_seconds)
    broker.close()
    await server.stop(grace=1)


def main() -> None:
    """The console script `mcprun-batcher`."""
    process.run(BatcherSettings, serve)
