"""The worker's process."""

import asyncio
import os
import socket
import uuid

from mcprun.errors import MessageTooLarge
from mcprun.protocol.v1 import batcher_pb2
from mcprun.runtime import logs, process, rpc
from mcprun.runtime.telemetry import Telemetry
from mcprun_worker.attachment import Attachment
from mcprun_worker.kvcache import KVCacheWatch
from mcprun_worker.models import Models
from mcprun_worker.repository import Repository
from mcprun_worker.settings import WorkerSettings

_log = logs.get_logger(__name__)

_HEALTH_SECONDS = 0.1


async def serve(settings: WorkerSettings, telemetry: Telemetry, stop: process.Stop) -> None:
    """Works until `stop` is requested and the batches that are here are finished, at most `drain_seconds` later."""
    info = batcher_pb2.WorkerInfo(
        id=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        device=_device(settings.device),
        kvcache="unreachable" if settings.kvcache_address else "off",
    )
    attachment = Attachment(settings.batcher_address, info=info, max_message_bytes=settings.max_message_bytes, telemetry=telemetry)
    models = Models(
        Repository(settings.models),
        threads=settings.cpu_threads or len(os.sched_getaffinity(0)),
        device=settings.device,
        too_large=MessageTooLarge(settings.max_message_bytes),
        on_change=attachment.announce,
        on_forget=attachment.forget,
    )
    health = rpc.Health()
    server = await rpc.server(
        settings.grpc_address,
        max_message_bytes=settings.max_message_bytes,
        health_state=health,
        services=(),
        telemetry=telemetry,
    )
    await server.start()
    async with asyncio.TaskGroup() as background:
        tasks = [background.create_task(attachment.run(models)), background.create_task(_report(attachment, health))]
        if settings.kvcache_address:
            watch = KVCacheWatch(settings.kvcache_address, max_message_bytes=settings.max_message_bytes, report=attachment.report_kvcache)
            tasks.append(background.create_task(watch.run()))
        loading = background.create_task(_load(models, attachment))
        await stop.wait()
        _log.info("draining")
        loading.cancel()
        tasks.pop(1).cancel()
        await health.set(False)
        drained = False
        try:
            async with asyncio.timeout(settings.drain_seconds):
                await attachment.drain()
            drained = True
        except TimeoutError:
            _log.warning("stopped with batches unfinished", after_seconds=settings.drain_seconds)
        await attachment.flush()
        for task in tasks:
            task.cancel()
    await server.stop(grace=0)
    if drained:
        await models.close()


async def _load(models: Models, attachment: Attachment) -> None:
    await models.load_all()
    attachment.settle()
    _log.info("every model had its first try")


async def _report(attachment: Attachment, health: rpc.Health) -> None:
    while True:
        ready = attachment.settled and attachment.attached
        if ready != health.serving:
            await health.set(ready)
        await asyncio.sleep(_HEALTH_SECONDS)


def _device(wanted: str) -> str:
    import onnxruntime

    return "cuda:0" if wanted != "cpu" and "CUDAExecutionProvider" in onnxruntime.get_available_providers() else "cpu"


def main() -> None:
    """The console script `mcprun-worker`."""
    process.run(WorkerSettings, serve)
