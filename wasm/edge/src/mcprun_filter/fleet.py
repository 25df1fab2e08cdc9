"""The breakers of all nodes that serve one model to one policy group on one side of a canary, and every change of their states.

They are one record so that a compare-and-swap covers them together: two workers cannot isolate one node each and exceed the
cap between them. All is pure: time is an argument, in whole milliseconds since the epoch. The clock may step: what is
stored moves along with a step back (see `touch`), and a step forward makes isolations, windows and leases end early.
"""

from __future__ import annotations

from mcprun_filter.breaker import (
    ANSWERED_LATE,
    CLOCK_TOLERANCE,
    CLOSED,
    CONSECUTIVE,
    GROWTH_LIMIT,
    HALF_OPEN,
    LAPSED,
    LARGEST_COUNT,
    OPEN,
    PROBE_FAILED,
    PROBES_LOST,
    RATIO,
    REASONS,
    RECOVERED,
    STATES,
    Breaker,
    Thresholds,
    Transition,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PREFIX = b"breaker/"
"""Begins the keys of all records in shared data."""
MAX_NODES = 64
MAX_NODE_NAME = 128
LARGEST_TOKEN = 0xFFFF_FFFF_FFFF_FFFF
LATEST = 0xFFFF_FFFF * 1000
"""The last millisecond that a record can hold."""


class Circuit:
    """What a fleet's record is read with: where it is kept, what today's policy says of it, and what this worker last saw of it."""

    __slots__ = ("again", "cas", "key", "nodes", "place", "quiet", "seen", "thresholds")

    def __init__(self, key: bytes, thresholds: Thresholds, nodes: Sequence[bytes] = ()) -> None:
        self.key = key
        self.place = PREFIX + key
        """Its key in shared data."""
        self.thresholds = thresholds
        self.nodes = tuple(nodes)
        """The nodes there are. Empty: those that are in the record."""
        self.seen: Fleet | None = None
        """The fleet as it was read last, only to be read; None when there was no record of it."""
        self.cas = 0
        """The number of that record; 0, which no record has, without one."""
        self.quiet = False
        """Whether all its breakers were closed then."""
        self.again: dict[bytes, list[int]] = {}
        """Where one more success at an address is counted (see `Tally`), for as long as the record stays the same."""


class Choice:
    """Where a request may go."""

    __slots__ = ("isolated", "panic", "probing", "retry_after_seconds", "total", "usable")

    def __init__(
        self, usable: tuple[bytes, ...], probing: tuple[bytes, ...], *, isolated: int, total: int, panic: bool, retry_after_seconds: int
    ) -> None:
        self.usable = usable
        """Nodes that take requests; in panic, all of them."""
        self.probing = probing
        """Isolated nodes that have room for a probe: `claim` one before the request goes there."""
        self.isolated = isolated
        """How many nodes are open or half-open."""
        self.total = total
        self.panic = panic
        self.retry_after_seconds = retry_after_seconds
        """1 or more: when to come back, should no node be left."""

    @property
    def refused(self) -> bool:
        """Whether no node is left: none usable and none to probe. A fleet of no known nodes refuses nothing."""
        return self.total > 0 and not self.usable and not self.probing


class Fleet:
    """The breakers. Methods that change anything set `changed`, and add to `transitions` what the caller should tell of."""

    __slots__ = ("base_generation", "breakers", "changed", "nodes", "seen", "thresholds", "transitions", "withheld")

    def __init__(self, thresholds: Thresholds, nodes: Sequence[bytes] = ()) -> None:
        self.thresholds = thresholds
        self.nodes = tuple(nodes)
        self.breakers: dict[bytes, Breaker] = {}
        self.seen = 0
        """The latest time of any change."""
        self.base_generation = 0
        """The generation of nodes without a record: above that of any record which was evicted."""
        self.changed = False
        self.transitions: list[Transition] = []
        self.withheld: list[bytes] = []
        """Nodes that would have been isolated but for the cap."""

    # Reading

    @property
    def members(self) -> tuple[bytes, ...]:
        """The nodes that the cap, panic and the choice are about."""
        return self.nodes or tuple(self.breakers)

    def generation(self, node: bytes) -> int:
        """To be remembered with each request that goes to that node, and given back with its outcome."""
        breaker = self.breakers.get(node)
        return self.base_generation if breaker is None else breaker.generation

    def hot(self, node: bytes, now: int) -> bool:
        """Whether that node's next outcomes are to be written at once rather than tallied."""
        breaker = self.breakers.get(node)
        if breaker is None:
            # Where nodes are not named, only its record tells that it is there: without it the one that fails would seem to be alone.
            return not self.nodes
        return breaker.hot(now, self.thresholds)

    def choose(self, now: int) -> Choice:
        """Where requests may go at that time."""
        now = _clamp(now)
        # After a step back waits cannot be trusted; to claim a probe puts the record's times in order.
        stepped = self.seen - now > CLOCK_TOLERANCE
        usable: list[bytes] = []
        probing: list[bytes] = []
        shortest = self.thresholds.max_isolation_ms
        members = self.members
        for name in members:
            breaker = self.breakers.get(name)
            if breaker is None or breaker.state == CLOSED:
                usable.append(name)
                continue
            wait = 0 if stepped else breaker.wait(now, self.thresholds)
            if wait == 0:
                probing.append(name)
            shortest = min(shortest, wait)
        isolated = len(members) - len(usable)
        # Alone, a node has nobody whose overload panic could prevent: its callers are told to wait.
        panic = len(members) > 1 and isolated > 0 and len(usable) * 1_000_000 < self.thresholds.panic_ppm * len(members)
        return Choice(
            members if panic else tuple(usable),
            tuple(probing),
            isolated=isolated,
            total=len(members),
            panic=panic,
            retry_after_seconds=max(1, -(-shortest // 1000)),
        )

    def status(self, now: int) -> list[dict[str, object]]:
        """Every breaker in plain values, for people and for JSON."""
        rows: list[dict[str, object]] = []
        for name in dict.fromkeys((*self.nodes, *self.breakers)):
            breaker = self.breakers.get(name) or Breaker(name, generation=self.base_generation)
            ok, failed = breaker.totals(now, self.thresholds)
            rows.append(
                {
                    "node": name.decode("latin-1"),
                    "state": STATES[breaker.state],
                    "since_milliseconds": breaker.since,
                    "reason": REASONS[breaker.reason],
                    "text": breaker.text,
                    "generation": breaker.generation,
                    "isolations": breaker.repetitions(now, self.thresholds),
                    "isolation_left_milliseconds": breaker.isolation_left(now, self.thresholds) if breaker.state == OPEN else 0,
                    "consecutive_failures": breaker.consecutive,
                    "window_ok": ok,
                    "window_failed": failed,
                    "probes_under_way": breaker.live(now),
                    "probe_successes": breaker.successes,
                }
            )
        return rows

    # Changing

    def record(self, node: bytes, now: int, *, ok: int = 0, failed: int = 0, tallied: int = 0, generation: int) -> bool:
        """Counts outcomes of ordinary requests; whether they counted. The successes came before the failures.

        ok: successes just now, which end a row of failures. tallied: successes that a worker counted while the node was
        untroubled; they belong to the window but came before any row of failures there is now.
        Those of another generation do not count, nor those of a node that is isolated: its probes speak for it.
        """
        if ok <= 0 and failed <= 0 and tallied <= 0:
            return False
        now = self._advance(now)
        breaker = self.breakers.get(node)
        if breaker is None:
            if generation != self.base_generation or not self._make_room(node, now):
                return False
            breaker = self.breakers[node] = Breaker(node, generation=generation, now=now)
        if breaker.generation != generation or breaker.state != CLOSED:
            return False
        self.changed = True
        breaker.seen = now
        breaker.add(now, ok, failed, tallied, self.thresholds)
        self._judge(breaker, now)
        return True

    def claim(self, node: bytes, now: int, token: int) -> int | None:
        """Takes a slot for a probe of an isolated node, for the time of a lease.

        The generation to `finish` it with, or None when there is no slot. The token, 64 bits, tells this probe from all others.
        """
        now = self._advance(now)
        breaker = self.breakers.get(node)
        if breaker is None or breaker.state == CLOSED:
            return None
        self._settle(breaker, now)
        if breaker.wait(now, self.thresholds) > 0:
            return None
        if breaker.state == OPEN:
            self._enter(breaker, HALF_OPEN, now, LAPSED)
        breaker.leases += (token & LARGEST_TOKEN, now + self.thresholds.lease_ms)
        breaker.seen = now
        self.changed = True
        return breaker.generation

    def finish(self, node: bytes, now: int, token: int, *, ok: bool | None, generation: int) -> bool:
        """A probe's answer; None when it says nothing of the node, and only its slot is freed. Whether it counted.

        It counts also when its lease has lapsed, as long as no other probe has decided since: slow nodes recover, too.
        """
        now = self._advance(now)
        breaker = self.breakers.get(node)
        if breaker is None or breaker.generation != generation or breaker.state == CLOSED:
            return False
        if breaker.release(token & LARGEST_TOKEN):
            self.changed = True
        counts = ok is not None and (breaker.state == HALF_OPEN or (ok and breaker.reason == PROBES_LOST))
        if not counts:
            self._settle(breaker, now)
            return False
        self.changed = True
        breaker.seen = now
        if not ok:
            breaker.count = min(breaker.count + 1, GROWTH_LIMIT)
            self._enter(breaker, OPEN, now, PROBE_FAILED, breaker.successes)
            return True
        if breaker.state == OPEN:
            self._enter(breaker, HALF_OPEN, now, ANSWERED_LATE)
        breaker.drop_lapsed(now)
        breaker.successes = min(breaker.successes + 1, 0xFFFF)
        if breaker.successes >= self.thresholds.probe_successes:
            self._enter(breaker, CLOSED, now, RECOVERED, breaker.successes)
        return True

    def touch(self, now: int) -> None:
        """To be called each second or so: notes the time while a node is isolated, and gives lost probes up.

        With it a clock that steps back prolongs no isolation by more than the time between two calls and the tolerance.
        """
        isolated = [breaker for breaker in self.breakers.values() if breaker.state != CLOSED]
        stale = abs(_clamp(now) - self.seen) >= CLOCK_TOLERANCE // 2
        now = self._advance(now)
        for breaker in isolated:
            self._settle(breaker, now)
        if isolated and stale:
            self.changed = True

    # Within

    def _advance(self, now: int) -> int:
        now = _clamp(now)
        back = self.seen - now
        if back > CLOCK_TOLERANCE:
            for breaker in self.breakers.values():
                breaker.shift(back)
            self.seen = now
            self.changed = True
        self.seen = max(self.seen, now)
        return now

    def _judge(self, breaker: Breaker, now: int) -> None:
        thresholds = self.thresholds
        ok, failed = breaker.totals(now, thresholds)
        total = ok + failed
        if breaker.consecutive > thresholds.consecutive_failures:
            reason, first, second = CONSECUTIVE, breaker.consecutive, 0
        elif total >= thresholds.min_requests and failed * 1_000_000 > thresholds.error_ppm * total:
            reason, first, second = RATIO, failed, total
        else:
            return
        if not self._may_isolate(breaker.name):
            self.withheld.append(breaker.name)
            return
        breaker.count = min(breaker.repetitions(now, thresholds) + 1, GROWTH_LIMIT)
        self._enter(breaker, OPEN, now, reason, first, second)

    def _may_isolate(self, node: bytes) -> bool:
        if self.thresholds.cap_ppm == 0:
            return False
        members = self.members
        isolated = sum(name in self.breakers and self.breakers[name].state != CLOSED for name in members)
        total = len(members) + (node not in members)
        return isolated == 0 or (isolated + 1) * 1_000_000 <= self.thresholds.cap_ppm * total

    def _settle(self, breaker: Breaker, now: int) -> None:
        """Frees lapsed leases, and isolates a half-open node again whose probes were all lost: for as long as last time."""
        if breaker.state != HALF_OPEN:
            return
        exhausted = breaker.exhausted(now, self.thresholds)
        if breaker.drop_lapsed(now):
            self.changed = True
        if exhausted:
            self._enter(breaker, OPEN, now, PROBES_LOST, breaker.lost)

    def _enter(self, breaker: Breaker, state: int, now: int, reason: int, first: int = 0, second: int = 0) -> None:
        before = breaker.state
        # Lost probes are no verdict: their late answers may still count, so the generation stays.
        if state == CLOSED or (state == OPEN and reason != PROBES_LOST):
            breaker.generation = (breaker.generation + 1) & LARGEST_COUNT
        if state == OPEN:
            breaker.length = self.thresholds.isolation_length(breaker.count, lone=len(self.members) == 1)
        breaker.state = state
        breaker.reason = reason
        breaker.first = min(first, LARGEST_COUNT)
        breaker.second = min(second, LARGEST_COUNT)
        breaker.since = now
        breaker.consecutive = 0
        breaker.successes = 0
        breaker.lost = 0
        breaker.window = []
        breaker.leases = []
        self.changed = True
        self.transitions.append(
            Transition(
                breaker.name,
                before,
                state,
                reason,
                breaker.text,
                generation=breaker.generation,
                length=breaker.length if state == OPEN else 0,
            )
        )

    def _make_room(self, node: bytes, now: int) -> bool:
        """Whether there is room for one more record, evicting the healthiest that was unseen for longest. Isolated ones stay."""
        if not 0 < len(node) <= MAX_NODE_NAME:
            return False
        if len(self.breakers) < MAX_NODES:
            return True
        closed = [breaker for breaker in self.breakers.values() if breaker.state == CLOSED]
        if not closed:
            return False
        evicted = min(
            closed, key=lambda b: (b.name in self.nodes, b.hot(now, self.thresholds), b.repetitions(now, self.thresholds) > 0, b.seen)
        )
        del self.breakers[evicted.name]
        self.base_generation = max(self.base_generation, (evicted.generation + 1) & LARGEST_COUNT)
        return True


def _clamp(now: int) -> int:
    return min(max(0, int(now)), LATEST)
