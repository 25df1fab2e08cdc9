"""Messages for one stream, joined a turn of the event loop at a time."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Outbox(Generic[T]):
    """Collects items of known size and hands out all that are there, as often as somebody asks.

    One reader. It has no bound of its own: what is put here was counted against a bound before.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._items: deque[tuple[T, int]] = deque()
        self._max_bytes = max_bytes
        self._wake = asyncio.Event()
        self._closed = False

    def put(self, item: T, size: int = 0) -> None:
        """Adds an item of `size` bytes. Dropped once the outbox is closed."""
        if not self._closed:
            self._items.append((item, size))
            self._wake.set()

    def close(self) -> None:
        """No more items: the reader gets what is left and then ends."""
        self._closed = True
        self._wake.set()

    async def groups(self) -> AsyncIterator[list[T]]:
        """Yields what has come since the last time, never more than `max_bytes` in one group unless one item alone is."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._items:
                item, size = self._items.popleft()
                group = [item]
                while self._items and size + self._items[0][1] <= self._max_bytes:
                    item, more = self._items.popleft()
                    group.append(item)
                    size += more
                yield group
            if self._closed:
                return
