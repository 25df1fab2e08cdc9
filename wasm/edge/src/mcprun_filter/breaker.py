"""One upstream node's circuit breaker: its state, its window of outcomes and the leases of its probes.

A `Breaker` is the data of one node and what can be said of it alone. What needs the other nodes too (the cap on isolated
nodes, panic) and every change of state is in `fleet`. Times are whole milliseconds since the Unix epoch.
"""

from __future__ import annotations

CLOSED, OPEN, HALF_OPEN = 0, 1, 2
STATES = ("closed", "open", "half-open")

NEW, RATIO, CONSECUTIVE, PROBE_FAILED, PROBES_LOST, LAPSED, RECOVERED, ANSWERED_LATE = range(8)
REASONS = ("new", "error-ratio", "consecutive-failures", "probe-failed", "probes-lost", "isolation-lapsed", "recovered", "answered-late")

CLOCK_TOLERANCE = 2_000
"""Milliseconds by which a clock may seem to run backwards: workers read it at different moments and write in any order."""

LARGEST_COUNT = 0xFFFF_FFFF
LARGEST_LENGTH = 0xFFFF_FFFF
GROWTH_LIMIT = 32
"""Repetitions past this no longer count: the isolation has long met any bound."""


def explanation(reason: int, first: int, second: int) -> str:
    """A reason and its two figures as a short text."""
    if reason == RATIO:
        return f"{first} of {second} requests in the window failed"
    if reason == CONSECUTIVE:
        return f"{first} failures in a row"
    if reason == PROBE_FAILED:
        return f"a probe failed after {first} that succeeded"
    if reason == PROBES_LOST:
        return f"{first} probes were lost and none was answered"
    if reason == LAPSED:
        return "the isolation lapsed and a probe was sent"
    if reason == RECOVERED:
        return f"{first} probes succeeded"
    if reason == ANSWERED_LATE:
        return "a probe that was given up for lost succeeded"
    return "nothing happened yet"


class Thresholds:
    """When a node is isolated, for how long, and how it comes back. Immutable by convention; equal when all values are.

    window_seconds: whole seconds of outcomes that the error ratio is made of.
    max_error_ratio: more than this share of failures opens, once the window holds `min_requests`.
    consecutive_failures: more than this many in a row opens at once.
    isolation_seconds: the first isolation; doubled at each repetition up to `max_isolation_seconds`.
    lone_isolation_seconds: the first isolation of a node that has no other beside it, doubled up to `isolation_seconds`.
    probes: how many may be under way at once; `probe_successes` of them close; each is given up after `probe_lease_seconds`.
    max_isolated_ratio: the share of nodes that may be isolated. One always may, unless this is 0, which isolates nobody.
    panic_ratio: with fewer than this share of nodes usable all are used again; 0 turns it off. It needs two nodes or more.
    """

    __slots__ = (
        "cap_ppm",
        "consecutive_failures",
        "error_ppm",
        "isolation_ms",
        "isolation_seconds",
        "lease_ms",
        "lone_isolation_ms",
        "lone_isolation_seconds",
        "max_error_ratio",
        "max_isolated_ratio",
        "max_isolation_ms",
        "max_isolation_seconds",
        "min_requests",
        "panic_ppm",
        "panic_ratio",
        "probe_lease_seconds",
        "probe_successes",
        "probes",
        "window_seconds",
    )

    def __init__(
        self,
        *,
        window_seconds: int = 10,
        max_error_ratio: float = 0.15,
        min_requests: int = 20,
        consecutive_failures: int = 5,
        isolation_seconds: float = 30.0,
        max_isolation_seconds: float = 300.0,
        lone_isolation_seconds: float | None = None,
        probes: int = 3,
        probe_successes: int = 3,
        probe_lease_seconds: float = 10.0,
        max_isolated_ratio: float = 0.5,
        panic_ratio: float = 0.5,
    ) -> None:
        self.window_seconds = window_seconds
        self.max_error_ratio = max_error_ratio
        self.min_requests = min_requests
        self.consecutive_failures = consecutive_failures
        self.isolation_seconds = isolation_seconds
        self.max_isolation_seconds = max_isolation_seconds
        self.lone_isolation_seconds = isolation_seconds if lone_isolation_seconds is None else lone_isolation_seconds
        self.probes = probes
        self.probe_successes = probe_successes
        self.probe_lease_seconds = probe_lease_seconds
        self.max_isolated_ratio = max_isolated_ratio
        self.panic_ratio = panic_ratio
        # Shares are compared as whole parts in a million: 15 of 100 must not be more than 0.15 by a rounding.
        self.error_ppm = round(max_error_ratio * 1_000_000)
        self.cap_ppm = round(max_isolated_ratio * 1_000_000)
        self.panic_ppm = round(panic_ratio * 1_000_000)
        self.isolation_ms = max(1, round(isolation_seconds * 1000))
        self.max_isolation_ms = min(LARGEST_LENGTH, max(1, round(max_isolation_seconds * 1000)))
        self.lone_isolation_ms = max(1, round(self.lone_isolation_seconds * 1000))
        self.lease_ms = max(1, round(probe_lease_seconds * 1000))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thresholds) and all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.__slots__))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__ if not name.endswith(("_ms", "_ppm")))
        return f"Thresholds({fields})"

    def isolation_length(self, count: int, *, lone: bool = False) -> int:
        """Milliseconds of the `count`th isolation in a row; the first is 1.

        A lone node's are shorter: nobody else can take its requests, so each second that it is well again and still isolated is lost.
        """
        first, longest = self.isolation_ms, self.max_isolation_ms
        if lone and self.lone_isolation_ms < first:
            first, longest = self.lone_isolation_ms, min(self.isolation_ms, longest)
        return min(first << min(max(count, 1) - 1, GROWTH_LIMIT), longest)


class Transition:
    """One change of a node's state, for metrics and logs."""

    __slots__ = ("after", "before", "generation", "key", "length", "node", "reason", "text")

    def __init__(self, node: bytes, before: int, after: int, reason: int, text: str, *, generation: int, length: int) -> None:
        self.node = node
        self.before = before
        self.after = after
        self.reason = reason
        self.text = text
        self.generation = generation
        self.length = length
        """Milliseconds of isolation that begin, 0 when none does."""
        self.key = b""
        """The key of the fleet, once it is stored."""

    def __repr__(self) -> str:
        return f"Transition({self.node!r}, {STATES[self.before]} -> {STATES[self.after]}: {self.text})"


class Breaker:
    """The breaker of one node. Fresh ones are closed.

    since: when the state began. length: milliseconds of the isolation, of use while open.
    count: isolations in a row, as of `since`; see `repetitions`. consecutive: failures in a row.
    window: second, successes, failures, and so on, oldest first. leases: token, until, and so on.
    successes, lost: answered and lost probes since the node became half-open. seen: when it last had an outcome.
    """

    __slots__ = (
        "consecutive",
        "count",
        "first",
        "generation",
        "leases",
        "length",
        "lost",
        "name",
        "reason",
        "second",
        "seen",
        "since",
        "state",
        "successes",
        "window",
    )

    def __init__(self, name: bytes, *, generation: int = 0, now: int = 0) -> None:
        self.name = name
        self.state = CLOSED
        self.reason = NEW
        self.first = 0
        self.second = 0
        self.generation = generation
        self.since = now
        self.length = 0
        self.count = 0
        self.consecutive = 0
        self.successes = 0
        self.lost = 0
        self.seen = now
        self.window: list[int] = []
        self.leases: list[int] = []

    @property
    def text(self) -> str:
        """Why the node is in its state."""
        return explanation(self.reason, self.first, self.second)

    # The window

    def add(self, now: int, ok: int, failed: int, tallied: int, thresholds: Thresholds) -> None:
        """Counts outcomes: successes tallied before the row of failures there is, successes that end it, then failures."""
        ok, failed, tallied = max(0, ok), max(0, failed), max(0, tallied)
        second = now // 1000
        self.forget(second, thresholds)
        window = self.window
        if window and window[-3] >= second:
            window[-2] = min(window[-2] + ok + tallied, LARGEST_COUNT)
            window[-1] = min(window[-1] + failed, LARGEST_COUNT)
        else:
            window += (second, min(ok + tallied, LARGEST_COUNT), min(failed, LARGEST_COUNT))
        self.consecutive = min((0 if ok else self.consecutive) + failed, LARGEST_COUNT)

    def forget(self, second: int, thresholds: Thresholds) -> None:
        """Drops the seconds that are past the window, and those that a clock which has stepped left in the future."""
        window = self.window
        while window and window[0] <= second - thresholds.window_seconds:
            del window[:3]
        while window and window[-3] > second + CLOCK_TOLERANCE // 1000 + 1:
            del window[-3:]

    def totals(self, now: int, thresholds: Thresholds) -> tuple[int, int]:
        """Successes and failures within the window."""
        ok = failed = 0
        oldest = now // 1000 - thresholds.window_seconds
        window = self.window
        for index in range(0, len(window), 3):
            if window[index] > oldest:
                ok += window[index + 1]
                failed += window[index + 2]
        return ok, failed

    def hot(self, now: int, thresholds: Thresholds) -> bool:
        """Whether the order of its next outcomes matters, so that each is to be written at once."""
        return self.state == CLOSED and (self.consecutive > 0 or (any(self.window[2::3]) and self.totals(now, thresholds)[1] > 0))

    # Isolation and probes

    def repetitions(self, now: int, thresholds: Thresholds) -> int:
        """Isolations in a row, less one for each healthy isolation period since."""
        if self.state != CLOSED or self.count == 0:
            return self.count
        return max(0, self.count - max(0, now - self.since) // thresholds.isolation_ms)

    def isolation_left(self, now: int, thresholds: Thresholds) -> int:
        """Milliseconds until an open node may be probed. The bound of today's thresholds holds for isolations of before, too."""
        if now < self.since - CLOCK_TOLERANCE:
            return 0
        return max(0, self.since + min(self.length, thresholds.max_isolation_ms) - now)

    def live(self, now: int) -> int:
        """How many probes hold a lease."""
        return sum(until > now for until in self.leases[1::2])

    def exhausted(self, now: int, thresholds: Thresholds) -> bool:
        """Whether a half-open node's probes were all lost, a full set of them, with no answer to go by."""
        if self.successes or self.live(now):
            return False
        return self.lost + len(self.leases) // 2 >= thresholds.probes

    def wait(self, now: int, thresholds: Thresholds) -> int:
        """Milliseconds until a probe may be claimed; 0: now, also for closed nodes."""
        if self.state == OPEN:
            return self.isolation_left(now, thresholds)
        if self.state == HALF_OPEN:
            if self.exhausted(now, thresholds):
                return min(self.length, thresholds.max_isolation_ms)
            if self.live(now) >= thresholds.probes:
                return min(until for until in self.leases[1::2] if until > now) - now
        return 0

    def drop_lapsed(self, now: int) -> bool:
        """Frees the slots of probes whose lease lapsed; whether there were any."""
        kept: list[int] = []
        leases = self.leases
        for index in range(0, len(leases), 2):
            if leases[index + 1] > now:
                kept += leases[index : index + 2]
        gone = (len(leases) - len(kept)) // 2
        self.lost = min(self.lost + gone, 0xFFFF)
        self.leases = kept
        return gone > 0

    def release(self, token: int) -> bool:
        """Frees the slot of that probe; whether it held one."""
        leases = self.leases
        for index in range(0, len(leases), 2):
            if leases[index] == token:
                del leases[index : index + 2]
                return True
        return False

    def shift(self, milliseconds: int) -> None:
        """Moves all its times back: the clock has stepped back by as much."""
        self.since = max(0, self.since - milliseconds)
        self.seen = max(0, self.seen - milliseconds)
        for index in range(1, len(self.leases), 2):
            self.leases[index] = max(0, self.leases[index] - milliseconds)
        for index in range(0, len(self.window), 3):
            self.window[index] = max(0, self.window[index] - milliseconds // 1000)
