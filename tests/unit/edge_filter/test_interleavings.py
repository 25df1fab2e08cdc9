"""Every interleaving of two workers' accesses to shared data, with crashes and a lease that lapses: a small model check of the real code.

A worker's program is run again and again with the answers that it had so far, up to the first access that it has no answer for: that is
its next step. So a state of the world is the shared data, the clock, and each worker's answers, and a breadth-first search
visits all of them.
"""

from collections.abc import Callable
from typing import Any

import pytest

import mcprun_filter.store
from mcprun_filter.breaker import CLOSED, OPEN, Thresholds
from mcprun_filter.fleet import PREFIX, Circuit, Fleet
from mcprun_filter.record import decode, encode
from mcprun_filter.store import OVERFLOW, REGISTRY, Fleets

T0 = 1_790_000_000_000
NODE = b"node"
Program = Callable[["Worker"], None]
Data = dict[bytes, tuple[bytes, int]]


class Pause(BaseException):
    """The program wants something that it has no answer for yet."""

    def __init__(self, access: tuple[Any, ...]) -> None:
        self.access = access


class Worker:
    """What a program sees: shared data and a clock, both answered from what was answered before."""

    def __init__(self, answers: tuple[Any, ...], *, ignore_cas: bool, max_fleets: int) -> None:
        self._answers = list(answers)
        self._ignore_cas = ignore_cas
        self.log: list[tuple[Any, ...]] = []
        self.fleets = Fleets(self, max_fleets=max_fleets, tries=20)

    def _ask(self, *access: Any) -> Any:
        if not self._answers:
            raise Pause(access)
        return self._answers.pop(0)

    def get(self, key: bytes) -> tuple[bytes, int] | None:
        return self._ask("get", key)  # type: ignore[no-any-return]

    def set(self, key: bytes, value: bytes, cas: int) -> bool:
        return self._ask("set", key, value, 0 if self._ignore_cas else cas)  # type: ignore[no-any-return]

    def now(self) -> int:
        return self._ask("now")  # type: ignore[no-any-return]

    def update(self, circuit: Circuit, operation: Callable[[Fleet], object], *, create: bool = False) -> Any:
        update = self.fleets.update(circuit, operation, create=create)
        assert update.stored
        for transition in update.transitions:
            self.log.append(("transition", transition.node, transition.before, transition.after))
        return update.value


class World:
    """One state."""

    __slots__ = ("answers", "clock", "crashed", "data", "number")

    def __init__(self, data: Data, number: int, clock: int, answers: tuple[tuple[Any, ...], ...], crashed: tuple[bool, ...]) -> None:
        self.data = data
        self.number = number
        self.clock = clock
        self.answers = answers
        self.crashed = crashed

    def key(self) -> tuple[Any, ...]:
        return (tuple(sorted(self.data.items())), self.number, self.clock, self.answers, self.crashed)


class Search:
    """The breadth-first search over all that two programs, the clock and crashes can do."""

    def __init__(
        self,
        programs: list[Program],
        *,
        initial: Data | None = None,
        clocks: tuple[int, ...] = (T0,),
        crashes: bool = False,
        ignore_cas: bool = False,
        max_fleets: int = 8,
    ) -> None:
        self._programs = programs
        self._initial = initial or {}
        self._clocks = clocks
        self._crashes = crashes
        self._ignore_cas = ignore_cas
        self._max_fleets = max_fleets
        self._runs: dict[tuple[int, tuple[Any, ...]], tuple[tuple[Any, ...] | None, list[tuple[Any, ...]]]] = {}
        self.states = 0
        self.ends = 0

    def run(self, worker: int, answers: tuple[Any, ...]) -> tuple[tuple[Any, ...] | None, list[tuple[Any, ...]]]:
        """The next access, None when the program has ended, and its log up to there."""
        found = self._runs.get((worker, answers))
        if found is None:
            seen = Worker(answers, ignore_cas=self._ignore_cas, max_fleets=self._max_fleets)
            access: tuple[Any, ...] | None = None
            try:
                self._programs[worker](seen)
            except Pause as pause:
                access = pause.access
            found = self._runs[worker, answers] = (access, seen.log)
        return found

    def explore(self, always: Callable[[World, list[list[tuple[Any, ...]]]], None], finally_: Callable[..., None] | None = None) -> None:
        """Calls `always` in each state, and `finally_` in those in which nothing more can happen, with the workers' logs."""
        count = len(self._programs)
        start = World(dict(self._initial), 100, 0, ((),) * count, (False,) * count)
        queue = [start]
        known = {start.key()}
        while queue:
            world = queue.pop(0)
            self.states += 1
            runs = [self.run(worker, world.answers[worker]) for worker in range(count)]
            logs = [log for _, log in runs]
            always(world, logs)
            if finally_ is not None and all(access is None or gone for (access, _), gone in zip(runs, world.crashed, strict=True)):
                self.ends += 1
                finally_(world, logs)
            for then in self._followers(world, runs):
                key = then.key()
                if key not in known:
                    known.add(key)
                    queue.append(then)

    def _followers(self, world: World, runs: list[tuple[tuple[Any, ...] | None, list[tuple[Any, ...]]]]) -> list[World]:
        followers = []
        for worker, (access, _) in enumerate(runs):
            if access is None or world.crashed[worker]:
                continue
            data, number, answer = self._perform(world, access)
            answers = list(world.answers)
            answers[worker] = (*answers[worker], answer)
            followers.append(World(data, number, world.clock, tuple(answers), world.crashed))
            if self._crashes:
                crashed = list(world.crashed)
                crashed[worker] = True
                followers.append(World(world.data, world.number, world.clock, world.answers, tuple(crashed)))
        if world.clock + 1 < len(self._clocks):
            followers.append(World(world.data, world.number, world.clock + 1, world.answers, world.crashed))
        return followers

    def _perform(self, world: World, access: tuple[Any, ...]) -> tuple[Data, int, Any]:
        if access[0] == "now":
            return world.data, world.number, self._clocks[world.clock]
        if access[0] == "get":
            return world.data, world.number, world.data.get(access[1])
        _, key, value, cas = access
        there = world.data.get(key)
        if there is not None and cas and cas != there[1]:
            return world.data, world.number, False
        return {**world.data, key: (value, world.number)}, world.number + 1, True


def stored(world: World, circuit: Circuit) -> Fleet:
    raw = world.data.get(PREFIX + circuit.key, (b"", 0))[0]
    return decode(raw, circuit.thresholds, circuit.nodes)


# Failures that two workers see: none is lost, also while the record comes into being


def failing(circuit: Circuit, times: int) -> Program:
    def program(worker: Worker) -> None:
        for _ in range(times):
            worker.update(circuit, lambda fleet: fleet.record(NODE, T0, failed=1, generation=0), create=True)

    return program


def check_failures(**options: Any) -> Search:
    circuit = Circuit(b"g/m/", Thresholds(consecutive_failures=3), (NODE,))
    search = Search([failing(circuit, 2), failing(circuit, 2)], **options)

    def finally_(world: World, logs: list[list[tuple[Any, ...]]]) -> None:
        assert stored(world, circuit).breakers[NODE].state == OPEN
        assert [entry for log in logs for entry in log] == [("transition", NODE, CLOSED, OPEN)]
        assert world.data[REGISTRY][0] == circuit.key

    search.explore(lambda world, logs: None, finally_)
    return search


def test_four_failures_of_two_workers_open_exactly_once_in_every_interleaving_from_no_record_on() -> None:
    search = check_failures()
    assert search.states > 500
    assert search.ends > 0


def test_the_check_finds_the_failures_that_are_lost_without_compare_and_swap() -> None:
    with pytest.raises((AssertionError, KeyError)):
        check_failures(ignore_cas=True)


def test_the_check_finds_the_failures_that_are_lost_when_a_missing_key_is_inserted_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcprun_filter.store, "NO_CAS", 0)
    with pytest.raises((AssertionError, KeyError)):
        check_failures()


def test_two_new_fleets_and_room_for_one_end_with_one_of_them_in_the_overflow_fleet() -> None:
    circuits = [Circuit(key, Thresholds(), (NODE,)) for key in (b"g/one/", b"g/two/")]
    search = Search([failing(circuit, 1) for circuit in circuits], max_fleets=1)

    def finally_(world: World, logs: list[list[tuple[Any, ...]]]) -> None:
        own = [circuit.key for circuit in circuits if PREFIX + circuit.key in world.data]
        assert own == [world.data[REGISTRY][0]]
        total = [stored(world, Circuit(key, Thresholds(), (NODE,))).breakers[NODE].consecutive for key in (own[0], OVERFLOW)]
        assert total == [1, 1]

    search.explore(lambda world, logs: None, finally_)
    assert search.ends > 0


# Probes: never more at once than may be, whoever crashes when, and whenever leases lapse

PROBED = Circuit(b"g/m/", Thresholds(consecutive_failures=0, probes=1, probe_successes=2, probe_lease_seconds=1), (NODE,))
LAPSED = T0 + 30_000


def isolated() -> Data:
    fleet = Fleet(PROBED.thresholds, PROBED.nodes)
    fleet.record(NODE, T0, failed=1, generation=0)
    return {PREFIX + PROBED.key: (encode(fleet), 1), REGISTRY: (PROBED.key, 2)}


def probing(first_token: int, answers: list[bool | None]) -> Program:
    def program(worker: Worker) -> None:
        for token, ok in enumerate(answers, first_token):
            now = worker.now()
            generation = worker.update(PROBED, lambda fleet, now=now, token=token: fleet.claim(NODE, now, token))
            if generation is None:
                continue
            worker.log.append(("held", token, generation, now + PROBED.thresholds.lease_ms))
            now = worker.now()
            counted = worker.update(
                PROBED,
                lambda fleet, now=now, token=token, ok=ok, generation=generation: fleet.finish(
                    NODE, now, token, ok=ok, generation=generation
                ),
            )
            worker.log.append(("done", token, generation, counted))

    return program


def check_probes(answers: list[list[bool | None]], **options: Any) -> Search:
    clocks = (LAPSED, LAPSED + PROBED.thresholds.lease_ms)
    search = Search(
        [probing(10 * worker, those) for worker, those in enumerate(answers, 1)], initial=isolated(), clocks=clocks, crashes=True, **options
    )

    def always(world: World, logs: list[list[tuple[Any, ...]]]) -> None:
        breaker = stored(world, PROBED).breakers[NODE]
        now = clocks[world.clock]
        entries = [entry for log in logs for entry in log]
        done = {entry[1] for entry in entries if entry[0] == "done"}
        held = [entry for entry in entries if entry[0] == "held" and entry[1] not in done]
        live = {entry[1] for entry in held if entry[3] > now and entry[2] == breaker.generation}
        assert len(live) <= PROBED.thresholds.probes
        assert breaker.state == CLOSED or live <= set(breaker.leases[::2])
        # What counted was an answer to the isolation that there was, and it closes only after as many successes as it takes.
        if breaker.state == CLOSED:
            assert sum(entry[0] == "done" and entry[3] for entry in entries) >= PROBED.thresholds.probe_successes

    def finally_(world: World, logs: list[list[tuple[Any, ...]]]) -> None:
        """From every end a node that is well comes back."""
        fleet = stored(world, PROBED)
        breaker = fleet.breakers[NODE]
        now = clocks[world.clock]
        for token in range(100, 103 + PROBED.thresholds.probe_successes):
            if breaker.state == CLOSED:
                break
            now += breaker.wait(now, PROBED.thresholds)
            generation = fleet.claim(NODE, now, token)
            if generation is not None:
                fleet.finish(NODE, now, token, ok=True, generation=generation)
        assert breaker.state == CLOSED
        assert now <= clocks[world.clock] + PROBED.thresholds.lease_ms + PROBED.thresholds.max_isolation_ms

    search.explore(always, finally_)
    return search


@pytest.mark.parametrize(
    "answers", [[[True, True], [True, True]], [[True, False], [True, None]], [[False], [True, True]], [[None], [None]]]
)
def test_two_workers_never_hold_more_probes_than_allowed_whoever_crashes_and_whenever_leases_lapse(
    answers: list[list[bool | None]],
) -> None:
    search = check_probes(answers)
    assert search.states > 100
    assert search.ends > 0


def test_the_check_finds_the_probe_too_many_without_compare_and_swap() -> None:
    with pytest.raises(AssertionError):
        check_probes([[True], [True]], ignore_cas=True)
