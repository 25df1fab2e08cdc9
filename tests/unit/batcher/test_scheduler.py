"""No accepted call is lost or ended twice, whatever happens to workers, callers and time."""

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mcprun.errors import DeadlineExceeded, MeshError, ResourceExhausted, Unavailable
from mcprun_batcher.queue import BatchingPolicy, Call
from mcprun_batcher.scheduler import Ending, Flight, Scheduler

MODEL = ("m", "1")
POLICY = BatchingPolicy(max_batch_size=4, max_wait=0.015, min_batch_ratio=0.5, max_queue_size=8)


def call(key: int, *, now: float = 0.0, deadline: float = float("inf"), rows: int = 1, model: tuple[str, str] = MODEL) -> Call:
    return Call(
        key=key,
        source=None,
        source_id=key,
        model=model,
        rows=rows,
        shape_key=b"",
        request=b"request",
        arrived=now,
        deadline=deadline,
    )


def scheduler_with_worker(*, credits: int = 2, worker: str = "w") -> Scheduler:
    scheduler = Scheduler(grace=10)
    add_worker(scheduler, worker, credits=credits)
    return scheduler


def add_worker(scheduler: Scheduler, worker: str, *, credits: int = 2) -> None:
    scheduler.attach(worker)
    scheduler.offer(worker, MODEL, policy=POLICY, instances=1)
    scheduler.add_credits(worker, MODEL, credits)


def test_a_call_whose_worker_dies_goes_to_the_next_worker_before_later_calls() -> None:
    scheduler = scheduler_with_worker(credits=1)
    scheduler.submit(call(1), 0.0)
    assert [list(flight.calls) for flight in scheduler.pump(0.0)] == [[1]]
    scheduler.submit(call(2), 0.0)
    assert scheduler.detach("w", 0.1) == []
    add_worker(scheduler, "v")
    assert [list(flight.calls) for flight in scheduler.pump(0.1)] == [[1, 2]]
    scheduler.check_integrity()


def test_a_call_that_was_in_two_dead_workers_ends_unavailable() -> None:
    scheduler = Scheduler(grace=10)
    for worker in ("a", "b"):
        add_worker(scheduler, worker)
        if worker == "a":
            scheduler.submit(call(1), 0.0)
        (flight,) = scheduler.pump(0.0)
        assert list(flight.calls) == [1]
        endings = scheduler.detach(worker, 0.0)
    assert [type(ending.error) for ending in endings] == [Unavailable]
    assert (scheduler.waiting, scheduler.running) == (0, 0)
    scheduler.check_integrity()


def test_a_waiting_call_past_its_deadline_ends_and_never_runs() -> None:
    scheduler = scheduler_with_worker(credits=0)
    scheduler.submit(call(1, deadline=0.05), 0.0)
    assert scheduler.next_event(0.0) == pytest.approx(0.05)
    assert scheduler.tick(0.049) == []
    assert [type(ending.error) for ending in scheduler.tick(0.05)] == [DeadlineExceeded]
    scheduler.add_credits("w", MODEL, 1)
    assert scheduler.pump(0.06) == []


def test_a_call_that_comes_too_late_is_refused() -> None:
    with pytest.raises(DeadlineExceeded):
        scheduler_with_worker().submit(call(1, deadline=1.0), 1.0)


def test_a_cancelled_call_is_taken_from_the_queue_and_a_running_one_is_told_to_its_worker() -> None:
    scheduler = scheduler_with_worker(credits=1)
    scheduler.submit(call(1), 0.0)
    scheduler.pump(0.0)
    scheduler.submit(call(2), 0.0)
    assert scheduler.cancel(2) is None
    assert scheduler.waiting == 0
    assert scheduler.cancel(1) == "w"
    assert scheduler.cancel(3) is None
    scheduler.check_integrity()


def test_a_cancelled_call_does_not_go_to_another_worker() -> None:
    scheduler = scheduler_with_worker(credits=1)
    scheduler.submit(call(1), 0.0)
    scheduler.pump(0.0)
    scheduler.cancel(1)
    assert scheduler.detach("w", 0.0) == []
    assert scheduler.waiting == 0


def test_calls_wait_for_a_lost_worker_only_for_the_grace() -> None:
    scheduler = scheduler_with_worker()
    scheduler.detach("w", 1.0)
    scheduler.submit(call(1), 2.0)
    assert scheduler.next_event(2.0) == pytest.approx(11.0)
    assert scheduler.tick(10.9) == []
    assert [type(ending.error) for ending in scheduler.tick(11.0)] == [Unavailable]
    with pytest.raises(Unavailable):
        scheduler.submit(call(2), 11.0)


def test_a_draining_worker_gets_no_more_and_finishes_what_it_has() -> None:
    scheduler = scheduler_with_worker()
    scheduler.submit(call(1), 0.0)
    (flight,) = scheduler.pump(0.0)
    scheduler.drain("w", 0.0)
    scheduler.submit(call(2), 0.0)
    assert scheduler.pump(1.0) == []
    assert [call.key for call in scheduler.finish(flight, 1.0, 1.0)] == [1]
    assert (scheduler.waiting, scheduler.running) == (1, 0)
    scheduler.check_integrity()


def test_a_batch_is_finished_once_and_only_by_its_worker() -> None:
    scheduler = scheduler_with_worker()
    scheduler.submit(call(1), 0.0)
    (flight,) = scheduler.pump(0.0)
    assert scheduler.flight("v", flight.batch_id) is None
    assert scheduler.flight("w", flight.batch_id) is flight
    scheduler.finish(flight, 1.0, 1.0)
    assert scheduler.flight("w", flight.batch_id) is None


def test_a_call_that_was_answered_in_part_of_a_batch_is_not_run_again() -> None:
    scheduler = scheduler_with_worker()
    for key in (1, 2):
        scheduler.submit(call(key), 0.0)
    (flight,) = scheduler.pump(0.0)
    answered = scheduler.answered(flight, 1)
    assert answered is not None
    assert answered.key == 1
    assert scheduler.answered(flight, 1) is None
    scheduler.check_integrity()
    scheduler.detach("w", 0.1)
    add_worker(scheduler, "v")
    assert [list(again.calls) for again in scheduler.pump(0.1)] == [[2]]


def test_a_closed_model_refuses_new_calls_and_keeps_accepted_ones() -> None:
    scheduler = scheduler_with_worker(credits=0)
    scheduler.submit(call(1), 0.0)
    scheduler.close(MODEL, "unloaded")
    with pytest.raises(Unavailable, match="unloaded"):
        scheduler.submit(call(2), 0.0)
    assert scheduler.busy(MODEL)
    scheduler.add_credits("w", MODEL, 1)
    (flight,) = scheduler.pump(0.0)
    scheduler.finish(flight, 1.0, 1.0)
    assert not scheduler.busy(MODEL)
    scheduler.reopen(MODEL)
    scheduler.submit(call(3), 0.0)


@dataclass
class Seen:
    accepted: set[int] = field(default_factory=set)
    ended: dict[int, str] = field(default_factory=dict)


class Mesh(RuleBasedStateMachine):
    """Callers, workers and time do as they like; every accepted call ends exactly once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.scheduler = Scheduler(grace=10)
        self.keys = itertools.count(1)
        self.names = itertools.count(1)
        self.seen = Seen()
        self.workers: list[str] = []
        self.flights: dict[int, Flight] = {}

    @initialize()
    def first_worker(self) -> None:
        self.attach(2)

    def end(self, key: int, how: str) -> None:
        assert key in self.seen.accepted, f"call {key} ended but was never accepted"
        assert key not in self.seen.ended, f"call {key} ended twice: {self.seen.ended[key]} and {how}"
        self.seen.ended[key] = how

    def end_all(self, endings: list[Ending]) -> None:
        for ending in endings:
            self.end(ending.call.key, type(ending.error).__name__)

    def pump(self) -> None:
        for flight in self.scheduler.pump(self.now):
            assert sum(call.rows for call in flight.calls.values()) <= POLICY.max_batch_size
            assert all(call.deadline > self.now or call.attempts > 1 for call in flight.calls.values())
            assert flight.worker_id in self.workers
            self.flights[flight.batch_id] = flight

    @rule(rows=st.integers(0, 4), patience=st.one_of(st.none(), st.floats(0.001, 5)))
    def submit(self, rows: int, patience: float | None) -> None:
        key = next(self.keys)
        deadline = float("inf") if patience is None else self.now + patience
        try:
            self.scheduler.submit(call(key, now=self.now, deadline=deadline, rows=rows), self.now)
        except MeshError as error:
            assert isinstance(error, ResourceExhausted | Unavailable)
        else:
            self.seen.accepted.add(key)
        self.pump()

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        open_keys = sorted(self.seen.accepted - self.seen.ended.keys())
        if open_keys:
            key = data.draw(st.sampled_from(open_keys))
            self.scheduler.cancel(key)
            self.end(key, "cancelled")
            self.pump()

    @rule(credits=st.integers(1, 2))
    def attach(self, credits: int) -> None:
        name = f"w{next(self.names)}"
        self.workers.append(name)
        add_worker(self.scheduler, name, credits=credits)
        self.pump()

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), killed=st.booleans())
    def lose_worker(self, data: st.DataObject, killed: bool) -> None:
        name = data.draw(st.sampled_from(self.workers))
        self.workers.remove(name)
        if not killed:
            self.scheduler.drain(name, self.now)
            for batch_id in [batch for batch, flight in self.flights.items() if flight.worker_id == name]:
                self.complete(batch_id)
        self.end_all(self.scheduler.detach(name, self.now))
        self.flights = {batch: flight for batch, flight in self.flights.items() if flight.worker_id != name}
        self.pump()

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        batch_id = data.draw(st.sampled_from(sorted(self.flights)))
        worker = self.flights[batch_id].worker_id
        self.complete(batch_id, data.draw(st.floats(0, 20)))
        self.scheduler.add_credits(worker, MODEL, 1)
        self.pump()

    def complete(self, batch_id: int, run_seconds: float = 0.0) -> None:
        flight = self.flights.pop(batch_id)
        for key in list(flight.calls):
            done = self.scheduler.answered(flight, key)
            assert done is not None
            if not done.abandoned:
                self.end(key, "answered")
        assert self.scheduler.finish(flight, self.now, run_seconds) == []

    @rule(seconds=st.floats(0.001, 12))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.end_all(self.scheduler.tick(self.now))
        self.pump()

    @invariant()
    def everything_is_accounted_for(self) -> None:
        self.scheduler.check_integrity()
        held = self.seen.accepted - self.seen.ended.keys()
        running = sum(not call.abandoned for flight in self.flights.values() for call in flight.calls.values())
        assert self.scheduler.waiting + running == len(held)

    @invariant()
    def nothing_waits_for_time_without_a_timer(self) -> None:
        if self.scheduler.waiting and any(self.workers) and not self.flights:
            assert self.scheduler.next_event(self.now) is not None


Mesh.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestMesh = Mesh.TestCase
