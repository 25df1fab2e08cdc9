"""The batcher's gRPC services.

Streams are coroutines that write, which the generated classes know only as generators: what a peer leaves behind when it dies
must be taken up at once.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc
import grpc.aio

from mcprun.errors import InvalidInput, MeshError
from mcprun.protocol.v1 import admin_pb2, admin_pb2_grpc, batcher_pb2, batcher_pb2_grpc, worker_pb2, worker_pb2_grpc
from mcprun.runtime import logs
from mcprun_batcher.broker import Broker

_log = logs.get_logger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

SERVICES = ("mcprun.v1.Batcher", "mcprun.v1.WorkerGateway", "mcprun.v1.Admin")
STREAMS = ("/mcprun.v1.Batcher/Submit", "/mcprun.v1.Batcher/WatchCatalog", "/mcprun.v1.WorkerGateway/Attach")


class BatcherService(batcher_pb2_grpc.BatcherServicer):
    """What routers call."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def Submit(  # type: ignore[override]
        self, request_iterator: AsyncIterator[batcher_pb2.SubmitFrame], context: Context
    ) -> None:
        """Carries inference for as long as the router's stream lives."""
        broker = self._broker
        link = broker.attach_router()
        # Tells the router that the stream stands before the first answer is there.
        await context.send_initial_metadata(())

        async def read() -> None:
            try:
                async for frame in request_iterator:
                    broker.submit(link, frame)
            finally:
                link.outbox.close()

        try:
            async with _beside(read()):
                async for answers in link.outbox.groups():
                    await context.write(batcher_pb2.AnswerFrame(answers=answers))
        finally:
            broker.detach_router(link)

    async def WatchCatalog(  # type: ignore[override]
        self, request: batcher_pb2.WatchCatalogRequest, context: Context
    ) -> None:
        """Sends the catalogue now and whenever it changes."""
        event = self._broker.watch()
        try:
            while True:
                await event.wait()
                event.clear()
                await context.write(self._broker.catalog.snapshot())
        finally:
            self._broker.unwatch(event)


class WorkerGatewayService(worker_pb2_grpc.WorkerGatewayServicer):
    """What workers attach to."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def Attach(  # type: ignore[override]
        self, request_iterator: AsyncIterator[worker_pb2.WorkerFrame], context: Context
    ) -> None:
        """Holds one worker for as long as its stream lives."""
        broker = self._broker
        iterator = aiter(request_iterator)
        first = await anext(iterator, None)
        if first is None:
            return
        if not first.HasField("hello") or not first.hello.id:
            await _abort(context, InvalidInput("the first frame must carry hello with an id"))
        try:
            link = broker.attach_worker(first.hello)
        except MeshError as error:
            await _abort(context, error)
        await context.send_initial_metadata(())

        async def read() -> None:
            try:
                broker.hear_worker(link, first)
                async for frame in iterator:
                    broker.hear_worker(link, frame)
            finally:
                link.outbox.close()

        try:
            async with _beside(read()):
                async for frames in link.outbox.groups():
                    await context.write(frames[0] if len(frames) == 1 else _merged(frames))
        finally:
            broker.detach_worker(link)


class AdminService(admin_pb2_grpc.AdminServicer):
    """Control of models, and statistics."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def LoadModel(self, request: admin_pb2.LoadModelRequest, context: Context) -> admin_pb2.LoadModelResponse:
        """Loads a model everywhere."""
        try:
            await self._broker.load(request.name)
        except MeshError as error:
            await _abort(context, error)
        return admin_pb2.LoadModelResponse()

    async def UnloadModel(self, request: admin_pb2.UnloadModelRequest, context: Context) -> admin_pb2.UnloadModelResponse:
        """Unloads a model everywhere."""
        try:
            await self._broker.unload(request.name)
        except MeshError as error:
            await _abort(context, error)
        return admin_pb2.UnloadModelResponse()

    async def GetStatistics(self, request: admin_pb2.GetStatisticsRequest, context: Context) -> admin_pb2.GetStatisticsResponse:
        """What models have done; an unknown name gives an empty list."""
        return admin_pb2.GetStatisticsResponse(
            models=[
                sums.message(name, version)
                for (name, version), sums in sorted(self._broker.statistics.items())
                if request.name in ("", name) and request.version in ("", version)
            ]
        )


@asynccontextmanager
async def _beside(reading: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs `reading` for as long as the block lasts. Its failure is told, and does not end the block."""
    task = asyncio.create_task(reading)
    try:
        yield
    finally:
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(result, Exception) and not isinstance(result, grpc.RpcError):
            _log.error("a stream failed", exc_info=result)


def _merged(frames: list[worker_pb2.BatcherFrame]) -> worker_pb2.BatcherFrame:
    merged = worker_pb2.BatcherFrame()
    for frame in frames:
        merged.MergeFrom(frame)
    return merged


async def _abort(context: Context, error: MeshError) -> NoReturn:
    await context.abort(error.code, error.brief)
    raise AssertionError("abort always raises")
