"""What the workers of a simulation have in common: the clock, shared data, queues, metrics, logs, and calls under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from proxy_wasm.abi import LogLevel, MetricType, Status
from proxy_wasm.testing.exchange import LogLine

if TYPE_CHECKING:
    from proxy_wasm.testing.calls import SimulatedCall
    from proxy_wasm.testing.worker import Worker

NANOSECONDS = 1_000_000_000


class Queue:
    """A shared queue, and who is told of its messages."""

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self.reader: tuple[Worker, int] | None = None


class World:
    """One per simulation."""

    def __init__(self, *, now: float, vm_id: str, clusters: frozenset[str] | None, log_level: LogLevel) -> None:
        self.now = round(now * NANOSECONDS)
        """Nanoseconds since the Unix epoch."""
        self.vm_id = vm_id
        self.clusters = clusters
        self.log_level = log_level
        self.shared_data: dict[bytes, tuple[bytes, int]] = {}
        self.queues: dict[int, Queue] = {}
        self.queue_ids: dict[tuple[bytes, bytes], int] = {}
        self.metrics: dict[str, int | list[int]] = {}
        self.logs: list[LogLine] = []
        self.calls: list[SimulatedCall] = []
        self._cas = 1
        self._tokens = 0
        self._metric_names: list[tuple[int, str]] = []
        self._posted: deque[Callable[[], object]] = deque()
        self._depth = 0

    def next_token(self) -> int:
        """A number for a call."""
        self._tokens += 1
        return self._tokens

    def write(self, key: bytes, value: bytes, cas: int) -> Status:
        """As Envoy does it: a key that is missing is inserted whatever `cas` says."""
        found = self.shared_data.get(key)
        if found is not None and cas not in (0, found[1]):
            return Status.CAS_MISMATCH
        self.shared_data[key] = (value, self._cas)
        self._cas += 1
        return Status.OK

    def register_queue(self, name: bytes, reader: tuple[Worker, int]) -> int:
        """The last one to register is the one who is told."""
        key = (self.vm_id.encode(), name)
        queue_id = self.queue_ids.setdefault(key, len(self.queue_ids) + 1)
        self.queues.setdefault(queue_id, Queue()).reader = reader
        return queue_id

    def define_metric(self, metric_type: int, name: str) -> int:
        """The same number for the same metric."""
        definition = (metric_type, name)
        if definition not in self._metric_names:
            self._metric_names.append(definition)
            self.metrics[name] = [] if metric_type == MetricType.HISTOGRAM else 0
        return self._metric_names.index(definition)

    def metric_definition(self, metric_id: int) -> tuple[int, str] | None:
        """Its type and name."""
        return self._metric_names[metric_id] if 0 <= metric_id < len(self._metric_names) else None

    def post(self, action: Callable[[], object]) -> None:
        """Does something once no callback runs."""
        self._posted.append(action)

    def enter(self) -> None:
        """A callback begins."""
        self._depth += 1

    def leave(self) -> None:
        """A callback has ended."""
        self._depth -= 1

    def settle(self) -> None:
        """Does what was posted, unless a callback still runs."""
        while self._posted and self._depth == 0:
            self._posted.popleft()()
