"""A batcher as a worker sees it: a real gRPC server that notes what the worker says and says what a test wants."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio

from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun.protocol.v1 import model_pb2, worker_pb2, worker_pb2_grpc
from mcprun.runtime import rpc

Key = tuple[str, str]
READY = model_pb2.MODEL_STATE_READY
LOADING = model_pb2.MODEL_STATE_LOADING
UNAVAILABLE = model_pb2.MODEL_STATE_UNAVAILABLE
MAX_BYTES = 1 << 20
PATIENCE_SECONDS = 60.0


class Link:
    """One stream of a worker."""

    def __init__(self, hello: worker_pb2.WorkerFrame) -> None:
        self.hello = hello.hello
        self.frames: list[worker_pb2.WorkerFrame] = []
        self.models: dict[Key, model_pb2.ModelVersion] = {}
        self.credits: Counter[Key] = Counter()
        self.results: dict[int, list[worker_pb2.BatchResult]] = {}
        self.command_results: dict[int, worker_pb2.CommandResult] = {}
        self.settled = self.draining = self.ended = False
        self.kvcache = hello.hello.kvcache
        self.out: asyncio.Queue[worker_pb2.BatcherFrame | None] = asyncio.Queue()
        self.changed = asyncio.Condition()

    async def hear(self, frame: worker_pb2.WorkerFrame) -> None:
        """Notes a frame, in the order in which the batcher takes its parts."""
        async with self.changed:
            self.frames.append(frame)
            for version in frame.models:
                key = (version.name, version.version)
                self.models[key] = version
                if version.state != READY:
                    self.credits.pop(key, None)
            for ref in frame.forgotten:
                self.models.pop((ref.name, ref.version), None)
                self.credits.pop((ref.name, ref.version), None)
            for credit in frame.credits:
                self.credits[credit.model_name, credit.model_version] += credit.batches
            for result in frame.results:
                self.results.setdefault(result.batch_id, []).append(result)
            for done in frame.command_results:
                self.command_results[done.id] = done
            self.settled |= frame.settled
            self.draining |= frame.draining
            self.kvcache = frame.kvcache or self.kvcache
            self.changed.notify_all()

    async def end(self) -> None:
        """The worker's side of the stream came to its end, or broke."""
        async with self.changed:
            self.ended = True
            self.changed.notify_all()

    async def until(self, condition: Any) -> None:
        """Returns once `condition()` holds."""
        async with asyncio.timeout(PATIENCE_SECONDS), self.changed:
            await self.changed.wait_for(condition)

    async def ready(self, *keys: Key) -> None:
        """Returns once these versions are READY."""
        await self.until(lambda: all(key in self.models and self.models[key].state == READY for key in keys))

    def send(self, **parts: Any) -> None:
        """Sends a frame."""
        self.out.put_nowait(worker_pb2.BatcherFrame(**parts))

    def batch(self, number: int, key: Key, items: Sequence[worker_pb2.BatchItem], **parts: Any) -> None:
        """Sends a batch, which uses a credit."""
        self.credits[key] -= 1
        self.send(batches=[worker_pb2.Batch(id=number, model_name=key[0], model_version=key[1], items=items)], **parts)

    async def result(self, number: int) -> list[worker_pb2.BatchResult]:
        """The parts of a batch's result, once it is whole."""
        await self.until(lambda: number in self.results and not self.results[number][-1].partial)
        return self.results[number]

    async def command(self, number: int, action: worker_pb2.ModelCommand.Action, name: str) -> tuple[int, str]:
        """Has a command carried out; returns its status, 0 when it went well."""
        self.send(commands=[worker_pb2.ModelCommand(id=number, action=action, model_name=name)])
        await self.until(lambda: number in self.command_results)
        status = self.command_results[number].status
        return status.code, status.message

    async def load(self, number: int, name: str) -> tuple[int, str]:
        """Has a model loaded."""
        return await self.command(number, worker_pb2.ModelCommand.ACTION_LOAD, name)

    async def unload(self, number: int, name: str) -> tuple[int, str]:
        """Has a model unloaded."""
        return await self.command(number, worker_pb2.ModelCommand.ACTION_UNLOAD, name)

    def hang_up(self) -> None:
        """Ends the stream from the batcher's side."""
        self.out.put_nowait(None)


class Gateway(worker_pb2_grpc.WorkerGatewayServicer):
    """Serves WorkerGateway. `links` are the streams that there were, the newest last."""

    def __init__(self, *, answers: bool = True) -> None:
        self.links: asyncio.Queue[Link] = asyncio.Queue()
        self.address = ""
        self._answers = answers
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str = "127.0.0.1:0") -> None:
        """Listens."""
        self._server = grpc.aio.server(options=rpc.options(MAX_BYTES))
        worker_pb2_grpc.add_WorkerGatewayServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(address)
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        """Breaks every stream."""
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    async def link(self) -> Link:
        """The next stream that a worker opens."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.links.get()

    async def Attach(self, request_iterator: AsyncIterator[worker_pb2.WorkerFrame], context: Any) -> None:  # type: ignore[override]
        """Holds one worker."""
        iterator = aiter(request_iterator)
        hello = await anext(iterator)
        link = Link(hello)
        await link.hear(hello)
        self.links.put_nowait(link)
        if self._answers:
            await context.send_initial_metadata(())

        async def read() -> None:
            try:
                async for frame in iterator:
                    await link.hear(frame)
            finally:
                link.out.put_nowait(None)

        reading = asyncio.create_task(read())
        try:
            while (frame := await link.out.get()) is not None:
                await context.write(frame)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await link.end()


def request(model: str, *inputs: tuple[str, Any], datatype: str = "FP32", id: str = "") -> bytes:
    """A serialized ModelInferRequest of numpy arrays."""
    message = oip.ModelInferRequest(model_name=model, id=id, raw_input_contents=[array.tobytes() for _, array in inputs])
    for name, array in inputs:
        message.inputs.add(name=name, datatype=datatype, shape=array.shape)
    return message.SerializeToString()


def item(number: int, body: bytes, **parts: Any) -> worker_pb2.BatchItem:
    """One request of a batch."""
    return worker_pb2.BatchItem(id=number, rows=1, request=body, **parts)
