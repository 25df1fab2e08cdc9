"""The stream to the batcher: announcements, credits and results there; batches, cancellations and commands back."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import grpc
import grpc.aio
from opentelemetry.trace import SpanKind

from mcprun.errors import Internal, MeshError, Unavailable, Unimplemented
from mcprun.protocol.v1 import batcher_pb2, model_pb2, worker_pb2, worker_pb2_grpc
from mcprun.runtime import logs, rpc
from mcprun.runtime.outbox import Outbox
from mcprun.runtime.telemetry import Telemetry
from mcprun_worker import metrics
from mcprun_worker.execution import Item, Outcome
from mcprun_worker.models import ModelKey, Models, Serving

_log = logs.get_logger(__name__)

_NANO = 1_000_000_000
_RETRY_SECONDS = 0.1
_MAX_RETRY_SECONDS = 1.0
_FLUSH_SECONDS = 2.0

Call: TypeAlias = "grpc.aio.StreamStreamCall[worker_pb2.WorkerFrame, worker_pb2.BatcherFrame]"
Stub: TypeAlias = "worker_pb2_grpc.WorkerGatewayAsyncStub"


class _Stream:
    """One life of the Attach stream."""

    def __init__(self, max_bytes: int) -> None:
        self.outbox: Outbox[worker_pb2.WorkerFrame] = Outbox(max_bytes=max_bytes)
        self.granted: Counter[ModelKey] = Counter()
        """Credits by model version that the batcher has and has not used."""
        self.unfinished: Counter[ModelKey] = Counter()
        """Batches by model version that came and have no result yet."""
        self.held: set[int] = set()
        """Ids of the requests of those batches. Another stream's batcher may give the same ids to others."""
        self.cancelled: set[int] = set()
        """Those of them that nobody waits for."""
        self.accepted = False
        """Whether the batcher has answered."""
        self.ended = asyncio.Event()
        """Set once the stream is no more."""


class Attachment:
    """Keeps the worker attached to one batcher. `run` must be running."""

    def __init__(
        self,
        address: str,
        *,
        info: batcher_pb2.WorkerInfo,
        max_message_bytes: int,
        telemetry: Telemetry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._info = info
        self._max_message_bytes = max_message_bytes
        self._telemetry = telemetry
        self._clock = clock
        self._models: Models | None = None
        self._stream: _Stream | None = None
        self._commands: asyncio.Queue[tuple[_Stream, worker_pb2.ModelCommand]] = asyncio.Queue()
        self._batches = 0
        self._running: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._leaving = False
        self.settled = False
        """Whether every model had its first try."""

    @property
    def attached(self) -> bool:
        """Whether the batcher has this worker."""
        return self._stream is not None and self._stream.accepted

    # What the models tell

    def announce(self, version: model_pb2.ModelVersion) -> None:
        """A version's description changed. One that is READY gets its credits."""
        stream = self._stream
        if stream is None:
            return
        frame = worker_pb2.WorkerFrame(models=[version])
        key = (version.name, version.version)
        if version.state == model_pb2.MODEL_STATE_READY:
            self._grant(stream, key, frame)
        else:
            # The batcher forgets credits that it has not used.
            stream.granted[key] = 0
        stream.outbox.put(frame)

    def forget(self, key: ModelKey) -> None:
        """A version's folder is gone."""
        if self._stream is not None:
            self._stream.outbox.put(worker_pb2.WorkerFrame(forgotten=[worker_pb2.ModelRef(name=key[0], version=key[1])]))

    def settle(self) -> None:
        """Every model had its first try."""
        self.settled = True
        if self._stream is not None:
            self._stream.outbox.put(worker_pb2.WorkerFrame(settled=True))

    def report_kvcache(self, state: str) -> None:
        """What this host's kvcache is seen to be: ok, unreachable or off."""
        self._info.kvcache = state
        if self._stream is not None:
            self._stream.outbox.put(worker_pb2.WorkerFrame(kvcache=state))

    # Life

    async def run(self, models: Models) -> None:
        """Attaches, and attaches again whenever the stream breaks, until it is cancelled."""
        self._models = models
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._obey(models))
            tasks.create_task(self._stay_attached(models))

    async def _stay_attached(self, models: Models) -> None:
        delay = _RETRY_SECONDS
        channel = rpc.channel(self._address, max_message_bytes=self._max_message_bytes)
        try:
            while not self._leaving:
                try:
                    if await rpc.apart(self._attach(worker_pb2_grpc.WorkerGatewayStub(channel), models)):
                        delay = _RETRY_SECONDS
                except grpc.aio.AioRpcError as error:
                    _log.debug("the batcher cannot be reached", error=error.details())
                except (ConnectionError, TimeoutError) as error:
                    _log.debug("the batcher cannot be reached", error=str(error))
                await asyncio.sleep(delay)
                delay = min(2 * delay, _MAX_RETRY_SECONDS)
        finally:
            await channel.close()

    async def drain(self) -> None:
        """Takes no more batches and returns once those that are here are finished and their results are sent."""
        self._info.draining = True
        if self._stream is not None:
            self._stream.outbox.put(worker_pb2.WorkerFrame(draining=True))
        while self._batches:
            self._idle.clear()
            await self._idle.wait()

    async def flush(self) -> None:
        """Ends the stream for good once the batcher has read everything that was put on it."""
        self._leaving = True
        stream, self._stream = self._stream, None
        if stream is None:
            return
        stream.outbox.close()
        if stream.accepted:
            # The batcher ends its side when it has read ours to the end; ending it from here might overtake the last results.
            with suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_SECONDS):
                    await stream.ended.wait()

    async def _attach(self, stub: Stub, models: Models) -> bool:
        """Lives one life of the stream. Returns whether the batcher had answered."""
        call = stub.Attach()
        stream = _Stream(self._max_message_bytes)
        hello = worker_pb2.WorkerFrame(hello=self._info, settled=self.settled, draining=self._info.draining)
        for version in models:
            hello.models.append(version)
            if version.state == model_pb2.MODEL_STATE_READY:
                self._grant(stream, (version.name, version.version), hello)
        stream.outbox.put(hello)
        self._stream = stream
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write(stream, call))
                tasks.create_task(self._read(stream, call, models))
        except* (grpc.aio.AioRpcError, ConnectionError, asyncio.InvalidStateError) as errors:
            first = errors.exceptions[0]
            _log.debug("detached", error=first.details() if isinstance(first, grpc.aio.AioRpcError) else str(first))
        finally:
            self._stream = None
            stream.outbox.close()
            stream.ended.set()
            call.cancel()
        return stream.accepted

    async def _write(self, stream: _Stream, call: Call) -> None:
        async for frames in stream.outbox.groups():
            frame = frames[0]
            for more in frames[1:]:
                frame.MergeFrom(more)
            await call.write(frame)
        await call.done_writing()

    async def _read(self, stream: _Stream, call: Call, models: Models) -> None:
        await call.initial_metadata()
        stream.accepted = not call.done()
        async for frame in call:
            for command in frame.commands:
                self._commands.put_nowait((stream, command))
            for batch in frame.batches:
                key = (batch.model_name, batch.model_version)
                stream.granted[key] = max(0, stream.granted[key] - 1)
                stream.unfinished[key] += 1
                stream.held.update(item.id for item in batch.items)
                self._batches += 1
                # Not of the stream's group: what runs in a thread cannot be stopped when the stream breaks.
                task = asyncio.create_task(self._run(stream, batch, models))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            # Only of requests that are here: a cancellation may cross the answer, and then nothing would ever take it away.
            stream.cancelled.update(stream.held.intersection(frame.cancelled))
        raise ConnectionError("the batcher ended the stream")

    async def _run(self, stream: _Stream, batch: worker_pb2.Batch, models: Models) -> None:
        key = (batch.model_name, batch.model_version)
        now = self._clock()
        items = [
            Item(item.id, item.request, item.rows, now + item.timeout_ns / _NANO if item.timeout_ns else math.inf, item.traceparent)
            for item in batch.items
        ]
        started_ns = time.time_ns() if self._telemetry.enabled else 0
        try:
            outcome = await self._outcome(models.serving(key), key, items, stream.cancelled)
            self._count(key, outcome)
            if self._telemetry.enabled:
                self._trace(key, items, started_ns)
            stream.unfinished[key] -= 1
            self._answer(stream, batch.id, key, outcome, items)
        finally:
            stream.held.difference_update(item.id for item in items)
            stream.cancelled.difference_update(item.id for item in items)
            self._batches -= 1
            if not self._batches:
                self._idle.set()

    async def _outcome(self, serving: Serving | None, key: ModelKey, items: list[Item], cancelled: set[int]) -> Outcome:
        error: MeshError
        if serving is None:
            error = Unavailable(f"model {key[0]!r} version {key[1]} is not loaded on this worker")
        else:
            try:
                return await serving.run(items, cancelled.__contains__)
            except Exception as fault:
                # A batch without an answer would be waited for as long as this worker lives.
                _log.error("a batch failed", model=key[0], version=key[1], exc_info=True)
                error = Internal(f"the worker failed at model {key[0]!r}: {type(fault).__name__}: {fault}")
        return Outcome(answers=dict.fromkeys((item.id for item in items), error))

    def _answer(self, stream: _Stream, batch_id: int, key: ModelKey, outcome: Outcome, items: list[Item]) -> None:
        """Sends the results, in several messages when one would be too large, and gives the credit back."""
        frame = worker_pb2.WorkerFrame()
        result = frame.results.add(batch_id=batch_id)
        size = 0
        for item in items:
            answer = outcome.answers[item.id]
            length = len(answer) if isinstance(answer, bytes) else 0
            if size and size + length > self._max_message_bytes:
                result.partial = True
                stream.outbox.put(frame, size)
                frame = worker_pb2.WorkerFrame()
                result = frame.results.add(batch_id=batch_id)
                size = 0
            size += length
            if isinstance(answer, bytes):
                result.answers.add(id=item.id, response=answer)
            else:
                status = result.answers.add(id=item.id).status
                status.code, status.message = answer.code.value[0], answer.message
        result.compute_input_ns = outcome.compute_input_ns
        result.compute_infer_ns = outcome.compute_infer_ns
        result.compute_output_ns = outcome.compute_output_ns
        result.expired, result.cancelled, result.rows = outcome.expired, outcome.cancelled, outcome.rows
        serving = self._models.serving(key) if self._models is not None else None
        if serving is not None and not self._info.draining:
            self._grant(stream, key, frame)
        stream.outbox.put(frame, size)

    def _grant(self, stream: _Stream, key: ModelKey, frame: worker_pb2.WorkerFrame) -> None:
        """Gives the credits of a version that the batcher does not have yet."""
        serving = self._models.serving(key) if self._models is not None else None
        missing = (serving.credits if serving is not None else 0) - stream.granted[key] - stream.unfinished[key]
        if missing > 0:
            stream.granted[key] += missing
            frame.credits.add(model_name=key[0], model_version=key[1], batches=missing)

    async def _obey(self, models: Models) -> None:
        """Carries out commands one after another. A command is finished even when its stream breaks meanwhile."""
        while True:
            stream, command = await self._commands.get()
            result = worker_pb2.CommandResult(id=command.id)
            try:
                if command.action == worker_pb2.ModelCommand.ACTION_LOAD:
                    await models.load(command.model_name)
                elif command.action == worker_pb2.ModelCommand.ACTION_UNLOAD:
                    await models.unload(command.model_name)
                else:
                    raise Unimplemented(f"command {command.action} is unknown to this worker")
            except MeshError as error:
                result.status.code, result.status.message = error.code.value[0], error.message
            except Exception as error:
                _log.error("a command failed", model=command.model_name, exc_info=True)
                result.status.code = Internal.code.value[0]
                result.status.message = f"the worker failed at the command: {type(error).__name__}: {error}"
            stream.outbox.put(worker_pb2.WorkerFrame(command_results=[result]))

    def _count(self, key: ModelKey, outcome: Outcome) -> None:
        if outcome.rows:
            metrics.rows.labels(*key).inc(outcome.rows)
            metrics.run_seconds.labels(*key).observe(outcome.compute_infer_ns / _NANO)
        if outcome.expired:
            metrics.dropped.labels(*key, "expired").inc(outcome.expired)
        if outcome.cancelled:
            metrics.dropped.labels(*key, "cancelled").inc(outcome.cancelled)

    def _trace(self, key: ModelKey, items: list[Item], started_ns: int) -> None:
        for item in items:
            if item.traceparent:
                span = self._telemetry.start_span("worker.infer", item.traceparent, kind=SpanKind.CONSUMER, start_ns=started_ns)
                span.set_attribute("mcprun.model", key[0])
                span.set_attribute("mcprun.model_version", key[1])
                span.set_attribute("mcprun.batch_requests", len(items))
                span.end()
