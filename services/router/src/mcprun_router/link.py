"""The streams to the batcher: inference calls there and back, and the catalogue."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from mcprun.errors import DeadlineExceeded, MeshError, ResourceExhausted, Unavailable, from_code
from mcprun.protocol.v1 import batcher_pb2, batcher_pb2_grpc
from mcprun.runtime import logs, rpc
from mcprun.runtime.breaker import Breaker
from mcprun.runtime.outbox import Outbox

_log = logs.get_logger(__name__)

_NANO = 1_000_000_000
_RETRY_SECONDS = 0.1
_CONNECT_SECONDS = 2.0
_FOREVER_SECONDS = 365 * 24 * 3600.0
"""A longer timeout is none: it would not fit the clocks that count it in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what may be open at the same time."""

    max_message_bytes: int
    max_open_requests: int
    max_open_bytes: int
    connect_seconds: float
    """How long a call waits for a batcher that is away."""


class _Stream:
    """One life of the Submit stream."""

    def __init__(self, max_bytes: int) -> None:
        self.outbox: Outbox[batcher_pb2.InferCall | int] = Outbox(max_bytes=max_bytes)
        self.open: dict[int, asyncio.Future[bytes]] = {}

    async def write(self, call: "grpc.aio.StreamStreamCall[batcher_pb2.SubmitFrame, batcher_pb2.AnswerFrame]") -> None:
        async for group in self.outbox.groups():
            frame = batcher_pb2.SubmitFrame()
            for item in group:
                if isinstance(item, int):
                    frame.cancelled.append(item)
                else:
                    frame.calls.append(item)
            await call.write(frame)

    async def read(self, call: "grpc.aio.StreamStreamCall[batcher_pb2.SubmitFrame, batcher_pb2.AnswerFrame]") -> None:
        pop = self.open.pop
        async for frame in call:
            for answer in frame.answers:
                future = pop(answer.id, None)
                if future is None or future.done():
                    continue
                if answer.HasField("status"):
                    future.set_exception(_error(answer.status))
                else:
                    future.set_result(answer.response)
        raise ConnectionError("the batcher ended the stream")

    def fail(self) -> None:
        self.outbox.close()
        for future in self.open.values():
            if not future.done():
                future.set_exception(Unavailable("the batcher went away while it had this request", retry_after=1.0))
        self.open.clear()


class BatcherLink:
    """Keeps the streams to one batcher alive. `run` must be running for calls to be answered."""

    def __init__(self, address: str, *, limits: Limits, on_catalog: Callable[[batcher_pb2.Catalog], None]) -> None:
        self._channel = rpc.channel(address, max_message_bytes=limits.max_message_bytes)
        self.stub = batcher_pb2_grpc.BatcherStub(self._channel)
        self.channel = self._channel
        self._limits = limits
        self._on_catalog = on_catalog
        self._breaker = Breaker("batcher")
        self._stream: _Stream | None = None
        self._connected = asyncio.Event()
        self._ids = itertools.count(1)
        self._open_requests = 0
        self._open_bytes = 0

    @property
    def connected(self) -> bool:
        """Whether the batcher answers."""
        return self._stream is not None

    @property
    def open_requests(self) -> int:
        """Calls without an answer."""
        return self._open_requests

    @property
    def breaker_state(self) -> str:
        """closed, half-open or open."""
        return self._breaker.state

    async def run(self) -> None:
        """Connects, and connects again whenever the streams break, until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._again_and_again(self._submit))
                tasks.create_task(self._again_and_again(self._watch))
        finally:
            await self._channel.close()

    async def call(
        self,
        request: bytes,
        *,
        model_name: str,
        model_version: str,
        rows: int,
        shape_key: bytes,
        timeout: float | None,
        traceparent: str = "",
        tenant: str = "",
    ) -> bytes:
        """Runs one request and returns the serialized answer.

        `timeout` is in seconds. Raises MeshError. When the task is cancelled, the request is taken back.
        """
        limits = self._limits
        if self._open_requests >= limits.max_open_requests:
            raise ResourceExhausted(f"at most {limits.max_open_requests} requests (max_open_requests) may be open", retry_after=1.0)
        if self._open_bytes + len(request) > limits.max_open_bytes:
            raise ResourceExhausted(f"at most {limits.max_open_bytes} bytes of requests (max_open_bytes) may be open", retry_after=1.0)
        if timeout is not None:
            if timeout <= 0:
                raise DeadlineExceeded("the deadline passed before the request was sent on")
            if timeout > _FOREVER_SECONDS:
                timeout = None
        self._open_requests += 1
        self._open_bytes += len(request)
        try:
            stream = self._stream or await self._wait(timeout)
            loop = asyncio.get_running_loop()
            future: asyncio.Future[bytes] = loop.create_future()
            call_id = next(self._ids)
            call = batcher_pb2.InferCall(
                id=call_id,
                model_name=model_name,
                model_version=model_version,
                rows=rows,
                shape_key=shape_key,
                request=request,
                traceparent=traceparent,
                tenant=tenant,
            )
            if timeout is not None:
                call.timeout_ns = max(1, int(timeout * _NANO))
            stream.open[call_id] = future
            stream.outbox.put(call, len(request))
            timer = loop.call_later(timeout, _expire, future) if timeout is not None else None
            try:
                return await future
            finally:
                if timer is not None:
                    timer.cancel()
                # Still open: the caller left or its time is over, and the batcher has to be told.
                if stream.open.pop(call_id, None) is not None:
                    stream.outbox.put(call_id)
        finally:
            self._open_requests -= 1
            self._open_bytes -= len(request)

    async def _wait(self, timeout: float | None) -> _Stream:
        if self._breaker.state == "open":
            raise self._breaker.refusal()
        patience = self._limits.connect_seconds if timeout is None else min(timeout, self._limits.connect_seconds)
        try:
            async with asyncio.timeout(patience):
                while self._stream is None:
                    await self._connected.wait()
        except TimeoutError:
            raise Unavailable("the batcher is away", retry_after=1.0) from None
        return self._stream

    async def _again_and_again(self, attempt: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await rpc.apart(attempt())
            except grpc.aio.AioRpcError as error:
                _log.debug("the batcher cannot be reached", error=error.details())
            except (ConnectionError, TimeoutError, MeshError) as error:
                _log.debug("the batcher cannot be reached", error=str(error))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _submit(self) -> None:
        with self._breaker.guard():
            call = self.stub.Submit(wait_for_ready=False)
            async with asyncio.timeout(_CONNECT_SECONDS):
                await call.initial_metadata()
                code = await call.code() if call.done() else None
            if code is not None:
                raise ConnectionError(f"the batcher answered {code}")
        stream = _Stream(self._limits.max_message_bytes)
        self._stream = stream
        self._connected.set()
        _log.info("connected to the batcher")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(stream.write(call))
                tasks.create_task(stream.read(call))
        except* (grpc.aio.AioRpcError, ConnectionError, asyncio.InvalidStateError) as errors:
            _log.warning("lost the batcher", unanswered=len(stream.open), error=str(errors.exceptions[0]))
        finally:
            self._stream = None
            self._connected.clear()
            stream.fail()
            call.cancel()

    async def _watch(self) -> None:
        async for catalog in self.stub.WatchCatalog(batcher_pb2.WatchCatalogRequest()):
            self._on_catalog(catalog)


def _expire(future: asyncio.Future[bytes]) -> None:
    if not future.done():
        future.set_exception(DeadlineExceeded("the deadline passed"))


def _error(status: batcher_pb2.Status) -> MeshError:
    return from_code(status.code, status.message, retry_after=status.retry_after_ns / _NANO if status.retry_after_ns else None)
