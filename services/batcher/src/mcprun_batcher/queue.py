"""The queue of one model version, and the rules by which a batch closes."""

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_SHORT_RUN = 0.5
"""Below this `busy_share` an instance waits longer for its batches than it works on them."""
_SMOOTHING = 0.1


@dataclass(frozen=True, slots=True)
class BatchingPolicy:
    """How calls may be joined. `mcprun.v1.BatchingPolicy` says what each field means; waits are in seconds here."""

    max_batch_size: int = 64
    max_wait: float = 0.015
    min_batch_ratio: float = 0.3
    dispatch_when_idle: bool = True
    max_queue_size: int = 1024
    max_queue_bytes: int = 256 * 1024 * 1024

    @property
    def early_rows(self) -> int:
        """From how many rows on a batch closes without waiting."""
        return max(1, math.ceil(self.max_batch_size * self.min_batch_ratio))


@dataclass(slots=True, eq=False)
class Call:
    """One inference request while the batcher holds it."""

    key: int
    """Unique in this batcher."""
    source: Any
    """The router stream that it came from, as the broker knows it."""
    source_id: int
    """Its id in that stream."""
    model: "tuple[str, str]"
    """Model name and version."""
    rows: int
    shape_key: bytes
    request: bytes
    arrived: float
    """When it came, in seconds of the scheduler's clock."""
    deadline: float = math.inf
    """When its caller stops waiting, in seconds of the scheduler's clock."""
    traceparent: str = ""
    arrived_ns: int = 0
    """When it came, in nanoseconds since the epoch; only kept for traces."""
    attempts: int = 0
    """How many workers it was sent to."""
    abandoned: bool = False
    """True once nobody waits for the answer."""


@dataclass(slots=True, eq=False)
class Server:
    """One worker's offer to run one model version."""

    worker_id: str
    instances: int
    credits: int = 0
    """How many more batches it takes."""
    running: set[int] = field(default_factory=set)
    """The ids of the batches that it has."""
    busy_share: float = 1.0
    """For how much of the time that a batch is under way an instance works on it; the rest is the way there and back."""

    @property
    def idle(self) -> bool:
        """Whether one of its instances has nothing to do, or will have nothing before a batch that leaves now is there."""
        instances = self.instances if self.busy_share > _SHORT_RUN else 2 * self.instances
        return len(self.running) < instances

    def learn(self, *, under_way: float, run: float, at_once: bool) -> None:
        """A batch came back after `under_way` seconds, for `run` of which an instance worked on it. `at_once` says that it found
        one idle; if it had to wait for one, its share is at least what it seems.
        """
        share = min(1.0, run / under_way) if under_way > 0 else 1.0
        if at_once:
            self.busy_share += (share - self.busy_share) * _SMOOTHING
        else:
            self.busy_share = max(self.busy_share, share)


class ModelQueue:
    """The calls that wait for one model version, in order of arrival within each shape.

    Invariants, tested by `check_integrity`: `rows`, `size` and `bytes` are the sums over the waiting calls; no group is empty.
    """

    def __init__(self, policy: BatchingPolicy, *, max_batch_bytes: int = 64 * 1024 * 1024) -> None:
        self.policy = policy
        self._max_batch_bytes = max_batch_bytes
        self.servers: dict[str, Server] = {}
        self.size = 0
        self.bytes = 0
        self._groups: dict[bytes, OrderedDict[int, Call]] = {}
        self._rows: dict[bytes, int] = {}

    def __iter__(self) -> Iterator[Call]:
        for group in self._groups.values():
            yield from group.values()

    def refusal(self, call: Call) -> str | None:
        """Why the queue cannot take this call now; None when it can."""
        policy = self.policy
        if self.size >= policy.max_queue_size:
            return f"the queue of model {call.model[0]!r} is full: at most {policy.max_queue_size} requests (max_queue_size) may wait"
        if self.bytes + len(call.request) > policy.max_queue_bytes:
            return (
                f"the queue of model {call.model[0]!r} is full: at most {policy.max_queue_bytes} bytes (max_queue_bytes) may "
                f"wait, {self.bytes} do and {len(call.request)} came"
            )
        return None

    def append(self, call: Call) -> None:
        """Puts a call at the end."""
        group = self._groups.get(call.shape_key)
        if group is None:
            group = self._groups[call.shape_key] = OrderedDict()
            self._rows[call.shape_key] = 0
        group[call.key] = call
        self._rows[call.shape_key] += call.rows
        self.size += 1
        self.bytes += len(call.request)

    def prepend(self, calls: list[Call]) -> None:
        """Puts calls back at the head, keeping their order. Not bounded: they were accepted before."""
        for call in reversed(calls):
            self.append(call)
            self._groups[call.shape_key].move_to_end(call.key, last=False)

    def remove(self, call: Call) -> bool:
        """Takes a call out; False when it does not wait here."""
        group = self._groups.get(call.shape_key)
        if group is None or group.pop(call.key, None) is None:
            return False
        self.size -= 1
        self.bytes -= len(call.request)
        if group:
            self._rows[call.shape_key] -= call.rows
        else:
            del self._groups[call.shape_key]
            del self._rows[call.shape_key]
        return True

    def next_batch(self, now: float) -> tuple[Server, list[Call]] | None:
        """Closes a batch if a rule says so now, and takes its calls out of the queue.

        The rules, for the group whose first call is oldest and then for any other group that is full enough: a batch closes
        when it is full, when it holds `min_batch_ratio` of a full one, when its first call has waited `max_wait`, or at once
        when an instance is idle. All need a credit.
        """
        if not self._groups:
            return None
        server = self._pick_server()
        if server is None:
            return None
        for shape_key, group in sorted(self._groups.items(), key=_arrival) if len(self._groups) > 1 else self._groups.items():
            if self._closes(server, self._rows[shape_key], next(iter(group.values())), now):
                return server, self._take(group)
        return None

    def next_close(self) -> float | None:
        """When `max_wait` will close a batch that waits now, in seconds of the clock; None when time alone closes none."""
        if not self._groups or self._pick_server() is None:
            return None
        return min(next(iter(group.values())).arrived for group in self._groups.values()) + self.policy.max_wait

    def _pick_server(self) -> Server | None:
        best: Server | None = None
        for server in self.servers.values():
            if server.credits > 0 and (best is None or len(server.running) < len(best.running)):
                best = server
        return best

    def _closes(self, server: Server, rows: int, oldest: Call, now: float) -> bool:
        policy = self.policy
        return (
            policy.max_batch_size == 0
            or rows >= policy.early_rows
            or (policy.dispatch_when_idle and server.idle)
            or now >= oldest.arrived + policy.max_wait  # the sum that `next_close` gives, to the last bit
        )

    def _take(self, group: OrderedDict[int, Call]) -> list[Call]:
        calls: list[Call] = []
        room = max(1, self.policy.max_batch_size)
        room_bytes = self._max_batch_bytes
        while group:
            call = next(iter(group.values()))
            # A call with more rows than a batch may hold was refused before; one that is first always fits.
            if calls and (call.rows > room or len(call.request) > room_bytes):
                break
            self.remove(call)
            calls.append(call)
            room -= call.rows
            room_bytes -= len(call.request)
            if room <= 0:
                break
        return calls

    def check_integrity(self) -> None:
        """Raises AssertionError when an invariant of the class is broken."""
        for key, group in self._groups.items():
            if not group:
                raise AssertionError(f"group {key!r} is empty")
            if self._rows[key] != sum(call.rows for call in group.values()):
                raise AssertionError(f"group {key!r} counts {self._rows[key]} rows")
        if self._rows.keys() != self._groups.keys():
            raise AssertionError("rows are counted for groups that do not exist")
        if self.size != sum(1 for _ in self):
            raise AssertionError(f"size is {self.size}, but {sum(1 for _ in self)} calls wait")
        if self.bytes != sum(len(call.request) for call in self):
            raise AssertionError(f"{self.bytes} bytes are counted")
        for server in self.servers.values():
            if server.credits < 0:
                raise AssertionError(f"worker {server.worker_id} owes {-server.credits} credits")


def _arrival(item: tuple[bytes, OrderedDict[int, Call]]) -> float:
    return next(iter(item[1].values())).arrived
