"""What a stream leaves behind when its peer is gone, over real gRPC."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator

import grpc.aio
import pytest

from mcprun.protocol.v1 import batcher_pb2, batcher_pb2_grpc, worker_pb2, worker_pb2_grpc
from mcprun.runtime import rpc, telemetry
from mcprun_batcher.broker import Broker, RouterLink, WorkerLink
from mcprun_batcher.service import BatcherService, WorkerGatewayService

MAX_BYTES = 8 << 20


class Watched(Broker):
    """Tells what was attached and what was detached."""

    def __init__(self) -> None:
        off = telemetry.make("test", otlp_endpoint="", sample_ratio=1)
        super().__init__(grace=1, command_seconds=1, max_bytes=MAX_BYTES, telemetry=off)
        self.attached: asyncio.Queue[RouterLink | WorkerLink] = asyncio.Queue()
        self.detached: asyncio.Queue[RouterLink | WorkerLink] = asyncio.Queue()

    def attach_router(self) -> RouterLink:
        link = super().attach_router()
        self.attached.put_nowait(link)
        return link

    def detach_router(self, link: RouterLink) -> None:
        super().detach_router(link)
        self.detached.put_nowait(link)

    def attach_worker(self, info: batcher_pb2.WorkerInfo) -> WorkerLink:
        link = super().attach_worker(info)
        self.attached.put_nowait(link)
        return link

    def detach_worker(self, link: WorkerLink) -> None:
        super().detach_worker(link)
        self.detached.put_nowait(link)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """What is to happen must not wait for the garbage collector."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
async def served() -> AsyncIterator[tuple[Watched, str]]:
    broker = Watched()
    server = grpc.aio.server(options=rpc.options(MAX_BYTES))
    batcher_pb2_grpc.add_BatcherServicer_to_server(BatcherService(broker), server)
    worker_pb2_grpc.add_WorkerGatewayServicer_to_server(WorkerGatewayService(broker), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield broker, f"127.0.0.1:{port}"
    await server.stop(grace=0)


@pytest.mark.usefixtures("no_collection")
async def test_a_router_that_is_cut_off_while_it_is_written_to_is_detached_at_once(served: tuple[Watched, str]) -> None:
    broker, address = served
    channel = rpc.channel(address, max_message_bytes=MAX_BYTES)
    call = batcher_pb2_grpc.BatcherStub(channel).Submit()  # type: ignore[no-untyped-call]
    link = await broker.attached.get()
    assert isinstance(link, RouterLink)
    for number in range(16):
        link.outbox.put(batcher_pb2.InferAnswer(id=number, response=bytes(MAX_BYTES)), MAX_BYTES)
    await asyncio.sleep(0.1)  # nobody reads: the writes are stuck now
    call.cancel()
    async with asyncio.timeout(10):
        assert await broker.detached.get() is link
    await channel.close()


@pytest.mark.usefixtures("no_collection")
async def test_a_worker_that_is_cut_off_while_it_is_written_to_is_detached_at_once(served: tuple[Watched, str]) -> None:
    broker, address = served
    channel = rpc.channel(address, max_message_bytes=MAX_BYTES)
    call = worker_pb2_grpc.WorkerGatewayStub(channel).Attach()  # type: ignore[no-untyped-call]
    await call.write(worker_pb2.WorkerFrame(hello=batcher_pb2.WorkerInfo(id="w")))
    link = await broker.attached.get()
    assert isinstance(link, WorkerLink)
    for _ in range(16):
        item = worker_pb2.BatchItem(id=1, request=bytes(MAX_BYTES))
        link.outbox.put(worker_pb2.BatcherFrame(batches=[worker_pb2.Batch(id=1, items=[item])]), MAX_BYTES)
    await asyncio.sleep(0.1)  # nobody reads: the writes are stuck now
    call.cancel()
    async with asyncio.timeout(10):
        assert await broker.detached.get() is link
    await channel.close()
