"""The running batcher: the scheduler with its clock, its streams and its commands."""

import asyncio
import itertools
import math
import time
from collections.abc import Callable

import grpc

from mcprun.errors import AlreadyExists, Internal, MeshError, NotFound, Unavailable, from_code
from mcprun.protocol.v1 import batcher_pb2, model_pb2, worker_pb2
from mcprun.runtime import logs
from mcprun.runtime.outbox import Outbox
from mcprun.runtime.telemetry import Telemetry, traceparent_of
from mcprun_batcher import metrics
from mcprun_batcher.catalog import READY, Catalog, policy
from mcprun_batcher.queue import Call
from mcprun_batcher.scheduler import Ending, Flight, ModelKey, Scheduler
from mcprun_batcher.statistics import ModelStatistics

_log = logs.get_logger(__name__)

_NANO = 1_000_000_000
_EXPIRED = grpc.StatusCode.DEADLINE_EXCEEDED


class RouterLink:
    """One router's stream: the calls of it that are open, and the answers on their way."""

    def __init__(self, max_bytes: int) -> None:
        self.outbox: Outbox[batcher_pb2.InferAnswer] = Outbox(max_bytes=max_bytes)
        self.calls: dict[int, int] = {}
        """Keys of open calls by the router's own ids."""


class WorkerLink:
    """One worker's stream: what it is to be sent, and the commands that it has not finished."""

    def __init__(self, worker_id: str, max_bytes: int) -> None:
        self.worker_id = worker_id
        self.outbox: Outbox[worker_pb2.BatcherFrame] = Outbox(max_bytes=max_bytes)
        self.commands: dict[int, asyncio.Future[None]] = {}


class Broker:
    """Owns the scheduler, the catalogue and the statistics. Lives in one event loop; no method may be called from outside it.

    `max_bytes` bounds the payloads in one frame. `clock` gives seconds and never goes back.
    """

    def __init__(
        self,
        *,
        grace: float,
        command_seconds: float,
        max_bytes: int,
        telemetry: Telemetry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.catalog = Catalog()
        self.statistics: dict[ModelKey, ModelStatistics] = {}
        self._scheduler = Scheduler(grace=grace, max_batch_bytes=max_bytes)
        self._grace = grace
        self._command_seconds = command_seconds
        self._max_bytes = max_bytes
        self._telemetry = telemetry
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._keys = itertools.count(1)
        self._command_ids = itertools.count(1)
        self._workers: dict[str, WorkerLink] = {}
        self._metrics: dict[ModelKey, metrics.ModelMetrics] = {}
        self._watchers: set[asyncio.Event] = set()
        self._model_locks: dict[str, asyncio.Lock] = {}
        self._progress = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._draining = False

    # Routers

    def attach_router(self) -> RouterLink:
        """A router opened its stream."""
        return RouterLink(self._max_bytes)

    def submit(self, link: RouterLink, frame: batcher_pb2.SubmitFrame) -> None:
        """Takes in one frame of a router."""
        now = self._clock()
        wall_ns = time.time_ns() if self._telemetry.enabled else 0
        for told in frame.calls:
            call = Call(
                key=next(self._keys),
                source=link,
                source_id=told.id,
                model=(told.model_name, told.model_version),
                rows=told.rows,
                shape_key=told.shape_key,
                request=told.request,
                arrived=now,
                deadline=now + told.timeout_ns / _NANO if told.timeout_ns else math.inf,
                traceparent=told.traceparent,
                arrived_ns=wall_ns,
            )
            try:
                if self._draining:
                    raise Unavailable("the batcher is stopping", retry_after=1.0)
                self._scheduler.submit(call, now)
            except MeshError as error:
                if (known := self._metrics.get(call.model)) is not None:
                    known.refused.inc()
                link.outbox.put(_failure(told.id, error))
            else:
                link.calls[told.id] = call.key
        for source_id in frame.cancelled:
            self._cancel(link, source_id)
        self._pump(now)

    def detach_router(self, link: RouterLink) -> None:
        """A router's stream ended; nobody waits for its calls any more."""
        link.outbox.close()
        for source_id in list(link.calls):
            self._cancel(link, source_id)
        self._pump(self._clock())

    # Workers

    def attach_worker(self, info: batcher_pb2.WorkerInfo) -> WorkerLink:
        """A worker opened its stream. Raises AlreadyExists when its id is attached."""
        if info.id in self._workers:
            raise AlreadyExists(f"a worker with id {info.id!r} is attached")
        link = WorkerLink(info.id, self._max_bytes)
        self._workers[info.id] = link
        self.catalog.attach(info)
        self._scheduler.attach(info.id)
        metrics.workers.set(len(self._workers))
        for name in sorted(self.catalog.unloaded):
            self._command(link, worker_pb2.ModelCommand.ACTION_UNLOAD, name)
        _log.info("worker attached", worker=info.id, host=info.host, pid=info.pid, device=info.device)
        self._changed()
        return link

    def hear_worker(self, link: WorkerLink, frame: worker_pb2.WorkerFrame) -> None:
        """Takes in one frame of a worker."""
        now = self._clock()
        changed = False
        for version in frame.models:
            self._tell(link, version, now)
            changed = True
        for ref in frame.forgotten:
            key = (ref.name, ref.version)
            self._scheduler.withdraw(link.worker_id, key, now)
            if self.catalog.forget(link.worker_id, key):
                self._end_all(self._scheduler.forget(key), now)
            changed = True
        for result in frame.results:
            self._finish(link, result, now)
        for credit in frame.credits:
            self._scheduler.add_credits(link.worker_id, (credit.model_name, credit.model_version), credit.batches)
        for done in frame.command_results:
            future = link.commands.pop(done.id, None)
            if future is None or future.done():
                continue
            if done.HasField("status"):
                future.set_exception(from_code(done.status.code, done.status.message))
            else:
                future.set_result(None)
        info = self.catalog.worker(link.worker_id)
        if frame.settled:
            self.catalog.settle(link.worker_id)
            changed = True
        if frame.draining and not info.draining:
            info.draining = True
            self._scheduler.drain(link.worker_id, now)
            changed = True
        if frame.kvcache and frame.kvcache != info.kvcache:
            info.kvcache = frame.kvcache
            changed = True
        self._pump(now)
        if changed:
            self._changed()

    def detach_worker(self, link: WorkerLink) -> None:
        """A worker's stream ended."""
        now = self._clock()
        link.outbox.close()
        del self._workers[link.worker_id]
        draining = self.catalog.worker(link.worker_id).draining
        self.catalog.detach(link.worker_id)
        before = self._scheduler.running
        endings = self._scheduler.detach(link.worker_id, now)
        metrics.workers.set(len(self._workers))
        _log.log(
            20 if draining else 30,
            "worker detached",
            worker=link.worker_id,
            unfinished=before - self._scheduler.running,
            ended=len(endings),
        )
        for future in link.commands.values():
            if not future.done():
                future.set_exception(Unavailable("the worker went away while it carried out the command", retry_after=1.0))
        self._end_all(endings, now)
        self._pump(now)
        self._changed()
        self._loop.call_later(self._grace, self._lose_models)

    # Models

    async def load(self, name: str) -> None:
        """Loads a model on every worker, or loads it anew. Raises MeshError."""
        async with self._model_lock(name):
            workers = self._attached()
            self.catalog.set_unloaded(name, False)
            await self._order(workers, worker_pb2.ModelCommand.ACTION_LOAD, name)

    async def unload(self, name: str) -> None:
        """Refuses new calls for a model, lets the accepted ones finish, and unloads it everywhere. Raises MeshError."""
        async with self._model_lock(name):
            workers = self._attached()
            keys = self.catalog.versions(name)
            if not keys:
                raise NotFound(f"no worker knows a model {name!r}")
            self.catalog.set_unloaded(name, True)
            for key in keys:
                self._scheduler.close(key, "unloaded")
            self._changed()
            async with asyncio.timeout(self._command_seconds):
                while any(self._scheduler.busy(key) for key in keys):
                    self._progress.clear()
                    await self._progress.wait()
            await self._order(workers, worker_pb2.ModelCommand.ACTION_UNLOAD, name)

    def watch(self) -> asyncio.Event:
        """An event that is set whenever the catalogue changes; give it to `unwatch` at the end."""
        event = asyncio.Event()
        event.set()
        self._watchers.add(event)
        return event

    def unwatch(self, event: asyncio.Event) -> None:
        """Ends a watch."""
        self._watchers.discard(event)

    # Stopping

    async def drain(self) -> None:
        """Refuses new calls and returns once every accepted one has ended."""
        self._draining = True
        while self._scheduler.waiting or self._scheduler.running:
            self._progress.clear()
            await self._progress.wait()

    def close(self) -> None:
        """Ends the streams to workers."""
        for link in self._workers.values():
            link.outbox.close()

    # The inner workings

    def _tell(self, link: WorkerLink, version: model_pb2.ModelVersion, now: float) -> None:
        key = (version.name, version.version)
        self.catalog.tell(link.worker_id, version)
        if version.state != READY:
            self._scheduler.withdraw(link.worker_id, key, now)
            return
        if key not in self._metrics:
            self._metrics[key] = metrics.ModelMetrics(*key)
            self.statistics[key] = ModelStatistics()
            metrics.queue_requests.labels(*key).set_function(lambda: self._scheduler.queue_size(key)[0])
            metrics.queue_bytes.labels(*key).set_function(lambda: self._scheduler.queue_size(key)[1])
            metrics.running_requests.set_function(lambda: self._scheduler.running)
        if self.catalog.is_unloaded(version.name):
            return
        self._scheduler.offer(link.worker_id, key, policy=policy(version), instances=version.instances)
        self._scheduler.reopen(key)

    def _finish(self, link: WorkerLink, result: worker_pb2.BatchResult, now: float) -> None:
        flight = self._scheduler.flight(link.worker_id, result.batch_id)
        if flight is None:
            _log.warning("a worker answered a batch that it does not have", worker=link.worker_id, batch=result.batch_id)
            return
        known, sums = self._metrics[flight.model], self.statistics[flight.model]
        served = delivered = queued_ns = 0
        for answer in result.answers:
            call = self._scheduler.answered(flight, answer.id)
            if call is None:
                continue
            took_ns = int((now - call.arrived) * _NANO)
            if answer.HasField("status"):
                sums.fail.add(1, took_ns)
                if not call.abandoned:
                    (known.expired if answer.status.code == _EXPIRED.value[0] else known.failed).inc()
            else:
                served += 1
                queued_ns += int((flight.sent - call.arrived) * _NANO)
                sums.success.add(1, took_ns)
                if not call.abandoned:
                    delivered += 1
            self._answer(call, answer)
        sums.add_served(served, queued_ns)
        if delivered:
            known.ok.inc(delivered)
        if not result.partial:
            run_ns = result.compute_input_ns + result.compute_infer_ns + result.compute_output_ns
            for call in self._scheduler.finish(flight, now, run_ns / _NANO):
                known.failed.inc()
                self._answer(call, _failure(call.key, Internal("the worker sent no answer for this request")))
            sums.add_batch(result, requests=flight.size, now_ms=time.time_ns() // 1_000_000)
        self._progress.set()

    def _answer(self, call: Call, answer: batcher_pb2.InferAnswer) -> None:
        if call.abandoned:
            return
        link: RouterLink = call.source
        link.calls.pop(call.source_id, None)
        answer.id = call.source_id
        link.outbox.put(answer, len(answer.response))

    def _end_all(self, endings: list[Ending], now: float) -> None:
        for ending in endings:
            known, sums = self._metrics[ending.call.model], self.statistics[ending.call.model]
            sums.fail.add(1, int((now - ending.call.arrived) * _NANO))
            (known.expired if ending.error.code is _EXPIRED else known.failed).inc()
            self._answer(ending.call, _failure(ending.call.key, ending.error))
        if endings:
            self._progress.set()

    def _cancel(self, link: RouterLink, source_id: int) -> None:
        key = link.calls.pop(source_id, None)
        if key is None:
            return
        model = self._scheduler.model_of(key)
        if model is not None:
            self._metrics[model].cancelled.inc()
        worker_id = self._scheduler.cancel(key)
        if worker_id is not None and worker_id in self._workers:
            self._workers[worker_id].outbox.put(worker_pb2.BatcherFrame(cancelled=[key]))
        self._progress.set()

    def _pump(self, now: float) -> None:
        for flight in self._scheduler.pump(now):
            self._send(flight, now)
        self._arm(now)

    def _send(self, flight: Flight, now: float) -> None:
        known = self._metrics[flight.model]
        frame = worker_pb2.BatcherFrame()
        batch = frame.batches.add(id=flight.batch_id, model_name=flight.model[0], model_version=flight.model[1])
        rows = size = 0
        for call in flight.calls.values():
            rows += call.rows
            size += len(call.request)
            known.queue_seconds.observe(now - call.arrived)
            if call.attempts > 1:
                known.requeued.inc()
            item = batch.items.add(id=call.key, rows=call.rows, request=call.request)
            if call.deadline != math.inf:
                item.timeout_ns = max(1, int((call.deadline - now) * _NANO))
            if call.traceparent:
                item.traceparent = self._traced(call) if self._telemetry.enabled else call.traceparent
        known.batch_rows.observe(rows)
        self._workers[flight.worker_id].outbox.put(frame, size)

    def _traced(self, call: Call) -> str:
        span = self._telemetry.start_span("batcher.queue", call.traceparent, start_ns=call.arrived_ns)
        span.set_attribute("mcprun.model", call.model[0])
        span.end()
        return traceparent_of(span) or call.traceparent

    def _arm(self, now: float) -> None:
        due = self._scheduler.next_event(now)
        if self._timer is not None:
            if due is not None and self._timer.when() <= self._loop.time() + (due - now) and not self._timer.cancelled():
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._loop.call_later(due - now, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._clock()
        self._end_all(self._scheduler.tick(now), now)
        self._pump(now)

    def _lose_models(self) -> None:
        for key in self.catalog.lost():
            self.catalog.lose(key)
            self._changed()

    def _changed(self) -> None:
        for event in self._watchers:
            event.set()

    def _attached(self) -> list[WorkerLink]:
        workers = list(self._workers.values())
        if not workers:
            raise Unavailable("no worker is attached", retry_after=1.0)
        return workers

    async def _order(self, workers: list[WorkerLink], action: worker_pb2.ModelCommand.Action, name: str) -> None:
        futures = [self._command(link, action, name) for link in workers]
        try:
            async with asyncio.timeout(self._command_seconds):
                results = await asyncio.gather(*futures, return_exceptions=True)
        except TimeoutError:
            raise Unavailable(f"model {name!r}: a worker did not finish within {self._command_seconds:g} s") from None
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise errors[0]

    def _command(self, link: WorkerLink, action: worker_pb2.ModelCommand.Action, name: str) -> asyncio.Future[None]:
        command_id = next(self._command_ids)
        future: asyncio.Future[None] = self._loop.create_future()
        # A command without a caller (such as the unloads at attach) may fail unseen: the worker's state tells of it.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        link.commands[command_id] = future
        link.outbox.put(worker_pb2.BatcherFrame(commands=[worker_pb2.ModelCommand(id=command_id, action=action, model_name=name)]))
        return future

    def _model_lock(self, name: str) -> asyncio.Lock:
        return self._model_locks.setdefault(name, asyncio.Lock())


def _failure(call_id: int, error: MeshError) -> batcher_pb2.InferAnswer:
    status = batcher_pb2.Status(code=error.code.value[0], message=error.message)
    if error.retry_after is not None:
        status.retry_after_ns = int(error.retry_after * _NANO)
    return batcher_pb2.InferAnswer(id=call_id, status=status)
