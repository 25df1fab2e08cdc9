"""All queues, all workers, and what goes where. Pure logic: no I/O, and every method is told the time."""

import itertools
from dataclasses import dataclass, field

from mcprun.errors import DeadlineExceeded, MeshError, ResourceExhausted, Unavailable
from mcprun_batcher.deadlines import Deadlines
from mcprun_batcher.queue import BatchingPolicy, Call, ModelQueue, Server

ModelKey = tuple[str, str]
"""Model name and version."""

MAX_ATTEMPTS = 2
"""A call that was in this many workers when they died is not sent to another: it may be what kills them."""


@dataclass(slots=True, eq=False)
class Flight:
    """A batch that a worker has."""

    batch_id: int
    worker_id: str
    model: ModelKey
    calls: dict[int, Call]
    """Its calls that have no answer yet by key, in order."""
    size: int
    """How many calls it had when it left."""
    sent: float
    """When it left, in seconds of the clock."""
    at_once: bool
    """Whether it was sent to an instance with nothing to do."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A call that ends here with an error."""

    call: Call
    error: MeshError


@dataclass(slots=True)
class _Queued:
    queue: ModelQueue
    orphaned_since: float | None = None
    """Since when no worker offers the model, in seconds of the clock."""
    closing: str = ""
    """Why no new calls are taken; empty while they are."""
    in_flight: int = 0
    """Calls of this model that workers have."""


@dataclass(slots=True)
class _Worker:
    models: set[ModelKey] = field(default_factory=set)
    batches: set[int] = field(default_factory=set)


class Scheduler:
    """Holds every accepted call until exactly one of: its batch is finished, it ends with an error, it is cancelled.

    `grace` is how long calls wait for a model that no worker offers any more, in seconds. A batch of several calls has at most
    `max_batch_bytes` of requests, so that it fits into one message.
    """

    def __init__(self, *, grace: float, max_batch_bytes: int = 64 * 1024 * 1024) -> None:
        self._grace = grace
        self._max_batch_bytes = max_batch_bytes
        self._models: dict[ModelKey, _Queued] = {}
        self._workers: dict[str, _Worker] = {}
        self._waiting: dict[int, Call] = {}
        self._in_flight: dict[int, int] = {}
        self._flights: dict[int, Flight] = {}
        self._deadlines = Deadlines()
        self._batch_ids = itertools.count(1)
        self._ready: set[ModelKey] = set()

    @property
    def waiting(self) -> int:
        """Calls in queues."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Calls that workers have."""
        return len(self._in_flight)

    def queue_size(self, model: ModelKey) -> tuple[int, int]:
        """Calls and bytes that wait for one model version."""
        queued = self._models.get(model)
        return (queued.queue.size, queued.queue.bytes) if queued else (0, 0)

    def model_of(self, key: int) -> ModelKey | None:
        """The model version that an open call is for; None when the call is not held."""
        if key in self._waiting:
            return self._waiting[key].model
        batch_id = self._in_flight.get(key)
        return self._flights[batch_id].model if batch_id is not None else None

    def busy(self, model: ModelKey) -> bool:
        """Whether any accepted call of this model version is still open."""
        queued = self._models.get(model)
        return queued is not None and (queued.queue.size > 0 or queued.in_flight > 0)

    # Calls

    def submit(self, call: Call, now: float) -> None:
        """Accepts a call. Raises MeshError when it cannot; the call is then not held."""
        queued = self._models.get(call.model)
        if queued is None:
            # The router has checked the name against the catalogue, so it exists; its worker has not told of it yet.
            raise _away(call.model)
        if queued.closing:
            raise Unavailable(f"model {call.model[0]!r} version {call.model[1]} is not loaded: {queued.closing}")
        if call.deadline <= now:
            raise DeadlineExceeded("the deadline passed before the request was queued")
        if self._lost(queued, now):
            raise _away(call.model)
        refusal = queued.queue.refusal(call)
        if refusal is not None:
            raise ResourceExhausted(refusal, retry_after=1.0)
        queued.queue.append(call)
        self._enter(call)

    def cancel(self, key: int) -> str | None:
        """Nobody waits for this call any more. Returns the worker that has it, None when it was not sent to one."""
        call = self._waiting.pop(key, None)
        if call is not None:
            self._leave(call)
            self._models[call.model].queue.remove(call)
            return None
        batch_id = self._in_flight.get(key)
        if batch_id is None:
            return None
        flight = self._flights[batch_id]
        flight.calls[key].abandoned = True
        return flight.worker_id

    def expire(self, now: float) -> list[Ending]:
        """Ends the waiting calls whose time is over, and those that waited in vain for a worker."""
        endings: list[Ending] = []
        for key in self._deadlines.due(now):
            call = self._waiting.pop(key)
            self._models[call.model].queue.remove(call)
            endings.append(Ending(call, DeadlineExceeded(f"the deadline passed after {now - call.arrived:.3f} s in the queue")))
        for model, queued in self._models.items():
            if queued.queue.size and self._lost(queued, now):
                endings += [Ending(call, _away(model)) for call in self._clear(queued)]
        return endings

    # Workers

    def attach(self, worker_id: str) -> None:
        """A worker came."""
        self._workers[worker_id] = _Worker()

    def offer(self, worker_id: str, model: ModelKey, *, policy: BatchingPolicy, instances: int) -> None:
        """A worker is warm for a model version, or its policy changed. Credits follow by `add_credits`."""
        self._workers[worker_id].models.add(model)
        queued = self._models.get(model)
        if queued is None:
            queued = self._models[model] = _Queued(ModelQueue(policy, max_batch_bytes=self._max_batch_bytes))
        queued.queue.policy = policy
        queued.orphaned_since = None
        server = queued.queue.servers.get(worker_id)
        if server is None:
            queued.queue.servers[worker_id] = Server(worker_id, instances)
        else:
            server.instances = instances
        self._ready.add(model)

    def add_credits(self, worker_id: str, model: ModelKey, batches: int) -> None:
        """The worker takes more batches of a model version. Ignored when it does not offer it."""
        queued = self._models.get(model)
        server = queued.queue.servers.get(worker_id) if queued else None
        if server is not None:
            server.credits += batches
            self._ready.add(model)

    def withdraw(self, worker_id: str, model: ModelKey, now: float) -> None:
        """The worker takes no more batches of a model version; those that it has go on."""
        worker = self._workers.get(worker_id)
        if worker is None or model not in worker.models:
            return
        worker.models.discard(model)
        queued = self._models[model]
        queued.queue.servers.pop(worker_id, None)
        if not queued.queue.servers:
            queued.orphaned_since = now

    def drain(self, worker_id: str, now: float) -> None:
        """The worker takes no more batches at all."""
        worker = self._workers.get(worker_id)
        for model in list(worker.models) if worker else ():
            self.withdraw(worker_id, model, now)

    def detach(self, worker_id: str, now: float) -> list[Ending]:
        """A worker is gone. Its unfinished calls go back to the head of their queues; those that have now been in too many
        dead workers end, and so do those whose time is over.
        """
        self.drain(worker_id, now)
        worker = self._workers.pop(worker_id, None)
        endings: list[Ending] = []
        for batch_id in sorted(worker.batches, reverse=True) if worker else ():
            flight = self._flights.pop(batch_id)
            queued = self._models[flight.model]
            queued.in_flight -= len(flight.calls)
            again: list[Call] = []
            for key, call in flight.calls.items():
                del self._in_flight[key]
                if call.abandoned:
                    continue
                if call.attempts >= MAX_ATTEMPTS:
                    endings.append(Ending(call, Unavailable(f"{call.attempts} workers died while they had this request")))
                elif call.deadline <= now:
                    endings.append(Ending(call, DeadlineExceeded("the deadline passed while its worker died")))
                else:
                    again.append(call)
                    self._enter(call)
            queued.queue.prepend(again)
        return endings

    def flight(self, worker_id: str, batch_id: int) -> Flight | None:
        """A batch that a worker has, None when it does not have it."""
        flight = self._flights.get(batch_id)
        return flight if flight is not None and flight.worker_id == worker_id else None

    def answered(self, flight: Flight, key: int) -> Call | None:
        """A worker has answered one call of a batch. None when the call is not in it, or not any more."""
        call = flight.calls.pop(key, None)
        if call is not None:
            self._models[flight.model].in_flight -= 1
            del self._in_flight[key]
        return call

    def finish(self, flight: Flight, now: float, run_seconds: float) -> list[Call]:
        """A worker has finished a batch, on which it has worked for `run_seconds`. Returns its calls that were not answered."""
        del self._flights[flight.batch_id]
        left = [call for key in list(flight.calls) if (call := self.answered(flight, key)) is not None]
        self._workers[flight.worker_id].batches.discard(flight.batch_id)
        server = self._models[flight.model].queue.servers.get(flight.worker_id)
        if server is not None:
            server.running.discard(flight.batch_id)
            server.learn(under_way=now - flight.sent, run=run_seconds, at_once=flight.at_once)
        self._ready.add(flight.model)
        return left

    # Models

    def close(self, model: ModelKey, reason: str) -> None:
        """Takes no new calls for a model version; what was accepted is finished."""
        queued = self._models.get(model)
        if queued is not None:
            queued.closing = reason

    def reopen(self, model: ModelKey) -> None:
        """Takes calls again."""
        queued = self._models.get(model)
        if queued is not None:
            queued.closing = ""

    def forget(self, model: ModelKey) -> list[Ending]:
        """No worker knows this model version any more. What waits for it ends."""
        queued = self._models.get(model)
        if queued is None or queued.queue.servers:
            return []
        endings = [Ending(call, _away(model)) for call in self._clear(queued)]
        if queued.in_flight == 0:
            del self._models[model]
        return endings

    # Time

    def pump(self, now: float) -> list[Flight]:
        """Closes every batch that can close now."""
        flights: list[Flight] = []
        for model in self._ready:
            queued = self._models.get(model)
            if queued is None:
                continue
            while (closed := queued.queue.next_batch(now)) is not None:
                flights.append(self._send(model, queued, *closed, now))
        self._ready.clear()
        return flights

    def next_event(self, now: float) -> float | None:
        """When `tick` has to be called next, in seconds of the clock; None when nothing waits for time to pass."""
        times: list[float] = []
        deadline = self._deadlines.next()
        if deadline is not None:
            times.append(deadline)
        for queued in self._models.values():
            if not queued.queue.size:
                continue
            if queued.orphaned_since is not None:
                times.append(queued.orphaned_since + self._grace)
            close = queued.queue.next_close()
            if close is not None:
                times.append(close)
        return max(now, min(times)) if times else None

    def tick(self, now: float) -> list[Ending]:
        """Time has passed: ends what has run out of it and looks at every queue again. `pump` sends what may go."""
        endings = self.expire(now)
        self._ready.update(model for model, queued in self._models.items() if queued.queue.size)
        return endings

    def check_integrity(self) -> None:
        """Raises AssertionError when calls, queues, flights and counters do not fit together."""
        self._deadlines.check_integrity()
        waiting: set[int] = set()
        for queued in self._models.values():
            queued.queue.check_integrity()
            waiting.update(call.key for call in queued.queue)
        if waiting != self._waiting.keys():
            raise AssertionError("the queues do not hold the calls that wait")
        flying = {key: flight.batch_id for flight in self._flights.values() for key in flight.calls}
        if flying != self._in_flight:
            raise AssertionError("the batches do not hold the calls that run")
        if waiting & flying.keys():
            raise AssertionError("a call waits and runs at the same time")
        for model, queued in self._models.items():
            count = sum(len(flight.calls) for flight in self._flights.values() if flight.model == model)
            if count != queued.in_flight:
                raise AssertionError(f"{model} counts {queued.in_flight} calls in flight, but has {count}")
        for worker_id, worker in self._workers.items():
            has = {flight.batch_id for flight in self._flights.values() if flight.worker_id == worker_id}
            if has != worker.batches:
                raise AssertionError(f"worker {worker_id} has batches {has}, but {worker.batches} are noted")

    def _lost(self, queued: _Queued, now: float) -> bool:
        # The same sum as in `next_event`: a timer for it must find the grace over.
        return queued.orphaned_since is not None and now >= queued.orphaned_since + self._grace

    def _enter(self, call: Call) -> None:
        self._waiting[call.key] = call
        if call.deadline != float("inf"):
            self._deadlines.add(call.key, call.deadline)
        self._ready.add(call.model)

    def _leave(self, call: Call) -> None:
        if call.deadline != float("inf"):
            self._deadlines.discard(call.key)

    def _clear(self, queued: _Queued) -> list[Call]:
        calls = list(queued.queue)
        for call in calls:
            queued.queue.remove(call)
            del self._waiting[call.key]
            self._leave(call)
        return calls

    def _send(self, model: ModelKey, queued: _Queued, server: Server, calls: list[Call], now: float) -> Flight:
        flight = Flight(
            batch_id=next(self._batch_ids),
            worker_id=server.worker_id,
            model=model,
            calls={call.key: call for call in calls},
            size=len(calls),
            sent=now,
            at_once=len(server.running) < server.instances,
        )
        for call in calls:
            del self._waiting[call.key]
            self._leave(call)
            call.attempts += 1
            self._in_flight[call.key] = flight.batch_id
        server.credits -= 1
        server.running.add(flight.batch_id)
        queued.in_flight += len(calls)
        self._flights[flight.batch_id] = flight
        self._workers[server.worker_id].batches.add(flight.batch_id)
        return flight


def _away(model: ModelKey) -> Unavailable:
    return Unavailable(f"no worker offers model {model[0]!r} version {model[1]} at the moment", retry_after=1.0)
