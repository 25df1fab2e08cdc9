"""Whatever workers, nodes, clocks and memory do: the breakers of a fleet keep their promises.

Three workers share one record by compare-and-swap. A second, much simpler account of the same fleet is kept beside it, made of
what was stored alone, and the two are compared after every step.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from unit.edge_filter.shared_data import SharedData

from mcprun_filter.breaker import ANSWERED_LATE, CLOSED, HALF_OPEN, OPEN, PROBES_LOST, RECOVERED, Thresholds
from mcprun_filter.fleet import PREFIX, Choice, Circuit, Fleet
from mcprun_filter.record import decode, encode
from mcprun_filter.store import Fleets, Update

T0 = 1_790_000_000_000
KEY = b"default/m/"
WORKERS = 3
TOLERANCE = 2_000
"""Milliseconds that a clock may seem to run backwards before it counts as a step."""


@dataclass
class Known:
    """What is known of one node from the changes of state that were stored."""

    state: int = CLOSED
    generation: int = 0
    open_until: int = 0
    closed_since: int = T0
    count: int | None = 0
    """Isolations in a row; None when the clock has stepped since, so that it can only be bounded."""
    length: int = 0


@dataclass
class Probe:
    """A probe that nobody has answered yet."""

    node: bytes
    generation: int
    until: int


workers = st.integers(0, WORKERS - 1)
picks = st.integers(0, 10_000)


class BreakerMachine(RuleBasedStateMachine):
    """Workers, nodes and a clock."""

    @initialize(
        count=st.integers(1, 5),
        configured=st.booleans(),
        probes=st.integers(1, 4),
        successes=st.integers(1, 4),
        lease=st.sampled_from([0.5, 2, 5]),
        consecutive=st.integers(0, 3),
        cap=st.sampled_from([0, 0.2, 0.5, 0.67, 1]),
        panic=st.sampled_from([0, 0.5, 1]),
        lone=st.sampled_from([0.5, 1, 8]),
        isolation=st.sampled_from([1, 4]),
        longest=st.sampled_from([4, 10, 30]),
        mishaps=st.sets(st.sampled_from(["step", "damage", "health"])),
    )
    def begin(
        self,
        count: int,
        configured: bool,
        probes: int,
        successes: int,
        lease: float,
        consecutive: int,
        cap: float,
        panic: float,
        lone: float,
        isolation: float,
        longest: float,
        mishaps: set[str],
    ) -> None:
        self.nodes = [b"node-%d" % number for number in range(count)]
        self.thresholds = Thresholds(
            window_seconds=3,
            max_error_ratio=0.5,
            min_requests=6,
            consecutive_failures=consecutive,
            isolation_seconds=isolation,
            max_isolation_seconds=longest,
            lone_isolation_seconds=lone,
            probes=probes,
            probe_successes=successes,
            probe_lease_seconds=lease,
            max_isolated_ratio=cap,
            panic_ratio=panic,
        )
        self.circuit = Circuit(KEY, self.thresholds, self.nodes if configured else ())
        self.now = T0
        self.token = 0
        self.data = SharedData()
        self.fleets = [Fleets(self.data) for _ in range(WORKERS)]
        self.known: dict[bytes, Known] = {}
        self.held: dict[int, Probe] = {}
        self.waiting: list[tuple[bytes, int]] = []
        # Each of them sets much back to its beginning, so that many runs go without.
        self.mishaps = mishaps

    # What workers do

    def update(self, worker: int, operation: Any, *, create: bool = False) -> Update:
        update = self.fleets[worker].update(self.circuit, operation, create=create)
        assert update.stored or not create
        for transition in update.transitions:
            self.follow(transition)
        return update

    def follow(self, transition: Any) -> None:
        """Takes a change of state into the account, which must have seen it coming."""
        known = self.of(transition.node)
        assert transition.before == known.state != transition.after
        event(f"{transition.before} -> {transition.after} for reason {transition.reason}")
        if transition.after == OPEN:
            self.lengthen(transition, known)
            known.open_until = self.now + transition.length - self.ahead()
            known.length = transition.length
            if transition.reason != PROBES_LOST:
                assert transition.generation == known.generation + 1
        elif transition.after == CLOSED:
            assert transition.reason == RECOVERED
            assert transition.generation == known.generation + 1
            known.closed_since = self.now
        elif transition.reason != ANSWERED_LATE:
            assert self.now >= known.open_until
        known.generation = transition.generation
        known.state = transition.after

    def lengthen(self, transition: Any, known: Known) -> None:
        lone = len(self.members()) == 1 or (not self.circuit.nodes and len(self.known) == 1)
        first = min(self.thresholds.lone_isolation_ms, self.thresholds.isolation_ms) if lone else self.thresholds.isolation_ms
        longest = self.thresholds.max_isolation_ms
        if lone and first < self.thresholds.isolation_ms:
            longest = min(longest, self.thresholds.isolation_ms)
        assert min(first, longest) <= transition.length <= longest
        if known.count is None:
            # After a step of the clock the least that can be said; it counts again from the shortest on.
            known.count = 1 if transition.length == first < longest else None
            return
        if transition.before == CLOSED:
            healthy = max(0, self.now - known.closed_since) // self.thresholds.isolation_ms
            known.count = max(0, known.count - healthy) + 1
        elif transition.reason != PROBES_LOST:
            known.count += 1
        expected = first
        for _ in range(known.count - 1):
            expected = min(2 * expected, longest)
        assert transition.length == min(expected, longest)

    def of(self, node: bytes) -> Known:
        return self.known.setdefault(node, Known(closed_since=self.now))

    def fleet(self) -> Fleet:
        found = self.data.values.get(PREFIX + KEY)
        return decode(b"" if found is None else found[0], self.thresholds, self.circuit.nodes)

    def ahead(self) -> int:
        """How far back the clock went too little to be put right: the next step back is taken to be longer by it."""
        return max(0, self.fleet().seen - self.now)

    def members(self) -> tuple[bytes, ...]:
        return self.fleet().members

    def outcome(self, worker: int, node: bytes, generation: int, *, ok: bool, times: int = 1) -> None:
        known = self.of(node)
        counts = known.state == CLOSED and known.generation == generation
        before = self.told(node)
        update = self.update(
            worker,
            lambda fleet: fleet.record(node, self.now, ok=times if ok else 0, failed=0 if ok else times, generation=generation),
            create=True,
        )
        assert update.value == counts
        assert counts or self.told(node) == before

    def told(self, node: bytes) -> Any:
        """All that a late answer must leave alone; times may move with the clock."""
        breaker = self.fleet().breakers.get(node)
        if breaker is None:
            return None
        return breaker.state, breaker.generation, breaker.count, breaker.consecutive, breaker.successes, breaker.window[1::3]

    @rule(worker=workers, node=picks, ok=st.booleans())
    def request(self, worker: int, node: int, ok: bool) -> None:
        name = self.nodes[node % len(self.nodes)]
        self.outcome(worker, name, self.fleets[worker].view(self.circuit).generation(name), ok=ok)

    @rule(worker=workers, node=picks)
    def fails_in_a_row(self, worker: int, node: int) -> None:
        name = self.nodes[node % len(self.nodes)]
        for turn in range(self.thresholds.consecutive_failures + 1):
            one = (worker + turn) % WORKERS
            self.outcome(one, name, self.fleets[one].view(self.circuit).generation(name), ok=False)

    @rule(worker=workers, node=picks, good=st.integers(0, 12), bad=st.integers(0, 12))
    def fails_by_share(self, worker: int, node: int, good: int, bad: int) -> None:
        name = self.nodes[node % len(self.nodes)]
        for turn in range(good + bad):
            ok = turn % 2 == 0 if turn < 2 * min(good, bad) else good > bad
            self.outcome(worker, name, self.fleets[worker].view(self.circuit).generation(name), ok=ok)

    @rule(worker=workers, node=picks)
    def begins_a_request(self, worker: int, node: int) -> None:
        name = self.nodes[node % len(self.nodes)]
        self.waiting.append((name, self.fleets[worker].view(self.circuit).generation(name)))

    @precondition(lambda self: self.waiting)
    @rule(worker=workers, which=picks, ok=st.booleans(), times=st.integers(1, 4))
    def is_answered_late(self, worker: int, which: int, ok: bool, times: int) -> None:
        node, generation = self.waiting.pop(which % len(self.waiting))
        self.outcome(worker, node, generation, ok=ok, times=times)

    @rule(worker=workers, node=picks)
    def claims(self, worker: int, node: int) -> None:
        self.claim(worker, self.nodes[node % len(self.nodes)])

    def claim(self, worker: int, node: bytes) -> bool:
        self.token += 1
        token = self.token
        lost = PROBES_LOST  # a claim may find that those before it were lost; then it is refused, too
        update = self.update(worker, lambda fleet: fleet.claim(node, self.now, token))
        known = self.of(node)
        if update.value is None or not update.stored:
            assert not any(transition.after == HALF_OPEN for transition in update.transitions)
            assert all(transition.reason == lost for transition in update.transitions)
            return False
        assert known.state == HALF_OPEN
        assert update.value == known.generation
        self.held[token] = Probe(node, known.generation, self.now + self.thresholds.lease_ms - self.ahead())
        return True

    @precondition(lambda self: any(known.state == OPEN for known in self.known.values()))
    @rule(worker=workers, early=st.integers(0, 1), count=st.integers(1, 6))
    def isolation_lapses(self, worker: int, early: int, count: int) -> None:
        """Time passes until the first isolated node may be probed, or nearly until then; whoever comes may try."""
        name, known = min(((name, known) for name, known in self.known.items() if known.state == OPEN), key=lambda pair: pair[1].open_until)
        self.now = max(self.now, known.open_until - early)
        for _ in range(count):
            if not self.claim(worker, name):
                break

    @precondition(lambda self: self.held)
    @rule(late=st.integers(0, 1))
    def leases_lapse(self, late: int) -> None:
        """The last lease lapses, or nearly."""
        self.now = max(self.now, max(probe.until for probe in self.held.values()) - 1 + late)

    @rule(worker=workers, node=picks, others=st.lists(workers, min_size=1, max_size=3))
    def claim_at_the_same_time(self, worker: int, node: int, others: list[int]) -> None:
        """Others claim between this worker's reading and its writing."""
        name = self.nodes[node % len(self.nodes)]
        left = list(others)

        def in_between() -> None:
            if left:
                self.claim(left.pop(), name)

        self.data.between = in_between
        self.claim(worker, name)
        self.data.between = None

    @rule(worker=workers, other=workers, node=picks)
    def fail_at_the_same_time(self, worker: int, other: int, node: int) -> None:
        """Two nodes, or one, meet their last failure in two workers at once."""
        names = [self.nodes[(node + step) % len(self.nodes)] for step in (0, 1)]
        times = self.thresholds.consecutive_failures + 1
        generation = self.of(names[0]).generation

        left = [other]

        def in_between() -> None:
            if left:
                self.outcome(left.pop(), names[1], self.of(names[1]).generation, ok=False, times=times)

        self.data.between = in_between
        self.update(
            worker,
            lambda fleet: fleet.record(names[0], self.now, failed=times, generation=generation),
            create=True,
        )
        self.data.between = None

    @precondition(lambda self: self.held)
    @rule(worker=workers, which=picks, ok=st.sampled_from([True, True, False, None]))
    def finishes(self, worker: int, which: int, ok: bool | None) -> None:
        token = list(self.held)[which % len(self.held)]
        self.finish(worker, token, ok=ok)

    @precondition(lambda self: any(self.outlived(probe) for probe in self.held.values()))
    @rule(worker=workers, ok=st.booleans())
    def an_outlived_probe_is_answered(self, worker: int, ok: bool) -> None:
        """Its node was isolated again, or has recovered, since it was sent."""
        token = next(token for token, probe in self.held.items() if self.outlived(probe))
        self.finish(worker, token, ok=ok)

    def outlived(self, probe: Probe) -> bool:
        known = self.of(probe.node)
        return known.state == HALF_OPEN and known.generation != probe.generation

    @rule(worker=workers, node=picks)
    def is_isolated_and_a_probe_fails(self, worker: int, node: int) -> None:
        """The way to a second isolation, with other probes left behind that nobody has answered yet."""
        name = self.nodes[node % len(self.nodes)]
        self.fails_in_a_row(worker, node)
        if self.of(name).state == OPEN:
            self.now = max(self.now, self.of(name).open_until)
        while self.of(name).state != CLOSED and self.claim(worker, name):
            pass
        running = [token for token, probe in self.held.items() if probe.node == name and probe.generation == self.of(name).generation]
        if running:
            self.finish(worker, running[-1], ok=False)
            self.now += self.of(name).length
            self.claim(worker, name)

    def finish(self, worker: int, token: int, *, ok: bool | None) -> None:
        probe = self.held.pop(token)
        known = self.of(probe.node)
        late = known.generation != probe.generation or known.state == CLOSED
        before = self.told(probe.node)
        update = self.update(worker, lambda fleet: fleet.finish(probe.node, self.now, token, ok=ok, generation=probe.generation))
        if late:
            event("a probe of an earlier generation is answered")
            assert not update.value
            assert self.told(probe.node) == before
        elif ok is not None and known.state == HALF_OPEN and not update.transitions:
            assert update.value

    @rule(worker=workers)
    def touches(self, worker: int) -> None:
        self.update(worker, lambda fleet: fleet.touch(self.now))

    # What the world does

    @rule(milliseconds=st.one_of(st.integers(1, 3_000), st.integers(1, 40_000)))
    def time_passes(self, milliseconds: int) -> None:
        self.now += milliseconds

    @precondition(lambda self: "step" in self.mishaps)
    @rule(milliseconds=st.one_of(st.integers(-TOLERANCE, 3_600_000), st.integers(-3_600_000, 0)))
    def clock_steps(self, milliseconds: int) -> None:
        self.now += milliseconds
        for known in self.known.values():
            known.count = None
            if milliseconds < 0:
                known.open_until += milliseconds
        for probe in self.held.values():
            if milliseconds < 0:
                probe.until += milliseconds

    @precondition(lambda self: "step" in self.mishaps and self.held)
    @rule(milliseconds=st.integers(TOLERANCE + 1, 3_600_000))
    def clock_steps_back_while_probes_are_under_way(self, milliseconds: int) -> None:
        self.clock_steps(-milliseconds)

    @precondition(lambda self: "damage" in self.mishaps and self.fleet().breakers)
    @rule(at=picks, bit=st.integers(0, 7), how=st.sampled_from(["flip", "cut", "longer", "empty"]))
    def memory_is_damaged(self, at: int, bit: int, how: str) -> None:
        """The record is no record any more: all begins anew, and nothing raises."""
        raw, _ = self.data.values[PREFIX + KEY]
        at %= max(1, len(raw))
        if how == "flip" and raw:
            raw = raw[:at] + bytes((raw[at] ^ 1 << bit,)) + raw[at + 1 :]
        else:
            raw = {"cut": raw[:at], "longer": raw + b"\0"}.get(how, b"")
        self.data.set(PREFIX + KEY, raw, 0)
        self.known.clear()
        self.held.clear()
        self.waiting.clear()
        fresh = self.fleet()
        assert (fresh.breakers, fresh.seen, fresh.base_generation) == ({}, 0, 0)

    @precondition(lambda self: "health" in self.mishaps)
    @rule()
    def all_is_well_again(self) -> None:
        self.heal()

    def heal(self) -> None:
        """Every probe is answered well and at once from now on: soon every node is closed, whatever state it was in."""
        self.update(0, lambda fleet: fleet.touch(self.now))
        end = self.now + self.thresholds.max_isolation_ms + self.thresholds.lease_ms + 2 * TOLERANCE + 1_000
        while any(known.state != CLOSED for known in self.known.values()):
            assert self.now <= end
            for worker, name in enumerate(self.nodes):
                while self.of(name).state != CLOSED and self.claim(worker % WORKERS, name):
                    self.finish(worker % WORKERS, self.token, ok=True)
            self.now += 1_000
            self.update(0, lambda fleet: fleet.touch(self.now))
        choice = self.fleet().choose(self.now)
        assert set(choice.usable) == set(self.members())
        assert (choice.probing, choice.isolated, choice.panic, choice.refused) == ((), 0, False, False)

    def teardown(self) -> None:
        if not hasattr(self, "known"):
            return
        self.heal()
        if not self.thresholds.cap_ppm:
            return
        # Health for long enough, and the next isolation is the first again.
        name = self.nodes[0]
        self.now += 40 * self.thresholds.isolation_ms
        self.outcome(0, name, self.of(name).generation, ok=False, times=self.thresholds.consecutive_failures + 1)
        assert self.of(name).state == OPEN
        lone = len(self.members()) == 1
        assert self.of(name).length == self.thresholds.isolation_length(1, lone=lone)

    # What must hold after each step

    @invariant()
    def the_record_agrees_with_what_was_told_of_it(self) -> None:
        fleet = self.fleet()
        for name, known in self.known.items():
            breaker = fleet.breakers.get(name)
            if breaker is not None:
                assert (breaker.state, breaker.generation) == (known.state, known.generation)
            else:
                assert known.state == CLOSED
        raw = self.data.values.get(PREFIX + KEY)
        if raw is not None and fleet.breakers:
            assert encode(fleet) == raw[0]

    @invariant()
    def no_more_probes_than_allowed_are_under_way(self) -> None:
        fleet = self.fleet()
        for name in self.nodes:
            known = self.of(name)
            live = [p for p in self.held.values() if p.node == name and p.generation == known.generation and p.until > self.now]
            assert len(live) <= self.thresholds.probes
            breaker = fleet.breakers.get(name)
            assert breaker is None or len(breaker.leases) // 2 <= self.thresholds.probes

    @invariant()
    def no_more_nodes_than_the_cap_are_isolated(self) -> None:
        isolated = sum(known.state != CLOSED for known in self.known.values())
        cap = self.thresholds.max_isolated_ratio
        allowed = max(1, int(cap * len(self.members()) + 1e-9)) if cap else 0
        assert isolated <= allowed

    @invariant()
    def requests_go_where_they_may(self) -> None:
        fleet = self.fleet()
        choice: Choice = fleet.choose(self.now)
        closed = {name for name in fleet.members if self.of(name).state == CLOSED}
        isolated = set(fleet.members) - closed
        share = self.thresholds.panic_ratio
        panic = len(fleet.members) > 1 and bool(isolated) and len(closed) < share * len(fleet.members)
        assert choice.panic == panic
        assert set(choice.usable) == (set(fleet.members) if panic else closed)
        assert set(choice.probing) <= isolated
        assert choice.refused == (bool(isolated) and not closed and not choice.probing and not panic)
        assert 1 <= choice.retry_after_seconds <= -(-self.thresholds.max_isolation_ms // 1000)
        # To be offered a probe is to get it, unless a clock that stepped back has to be put right first.
        for name in choice.probing if fleet.seen - self.now <= TOLERANCE else ():
            again = self.fleet()
            exhausted = again.breakers[name].exhausted(self.now, self.thresholds)
            assert again.claim(name, self.now, 0) is not None or exhausted


TestBreakers = BreakerMachine.TestCase
TestBreakers.settings = settings(max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
