"""Which waiting calls have run out of time."""

import heapq


class Deadlines:
    """A heap of deadlines whose entries can be taken back.

    An entry that was discarded stays in the heap until it is due or until such entries outnumber the live ones; so
    memory is bounded by the live entries, whatever the deadlines are.
    """

    _SLACK = 64

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._live: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._live)

    def add(self, key: int, deadline: float) -> None:
        """Remembers that `key` is due at `deadline`, in seconds of the caller's clock."""
        self._live[key] = deadline
        heapq.heappush(self._heap, (deadline, key))

    def discard(self, key: int) -> None:
        """Forgets `key`, if it is there."""
        if self._live.pop(key, None) is not None and len(self._heap) > 2 * len(self._live) + self._SLACK:
            self._heap = [(deadline, key) for key, deadline in self._live.items()]
            heapq.heapify(self._heap)

    def due(self, now: float) -> list[int]:
        """Takes out and returns the keys whose deadline is not after `now`, the earliest first."""
        keys: list[int] = []
        while self._heap and self._heap[0][0] <= now:
            deadline, key = heapq.heappop(self._heap)
            if self._live.get(key) == deadline:
                del self._live[key]
                keys.append(key)
        return keys

    def next(self) -> float | None:
        """The earliest deadline, None when there is none."""
        while self._heap:
            deadline, key = self._heap[0]
            if self._live.get(key) == deadline:
                return deadline
            heapq.heappop(self._heap)
        return None

    def check_integrity(self) -> None:
        """Raises AssertionError when a live deadline is missing from the heap or the heap has outgrown its bound."""
        entries = set(self._heap)
        missing = [key for key, deadline in self._live.items() if (deadline, key) not in entries]
        if missing:
            raise AssertionError(f"deadlines of {missing} are not in the heap")
        if len(self._heap) > 2 * len(self._live) + self._SLACK + 1:
            raise AssertionError(f"{len(self._heap)} heap entries for {len(self._live)} deadlines")
