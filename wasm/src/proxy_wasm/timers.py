"""Timers, built on the one tick that the host gives each root context."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from proxy_wasm.binding import bound
from proxy_wasm.errors import check
from proxy_wasm.futures import Future

if TYPE_CHECKING:
    from proxy_wasm.contexts import Context

_NANOSECONDS = 1_000_000


class Sleep(Future[None]):
    """The end of a wait."""


class Timer:
    """Calls a function once, later."""

    __slots__ = ("_due", "_function", "_order", "_owner")

    def __init__(self, due: int, order: int, owner: Context, function: Callable[[], object]) -> None:
        self._due = due
        self._order = order
        self._owner = owner
        self._function: Callable[[], object] | None = function

    def __lt__(self, other: Timer) -> bool:
        return (self._due, self._order) < (other._due, other._order)

    def cancel(self) -> None:
        """It will not call. Nothing happens when it has."""
        self._function = None

    def call(self) -> None:
        """What it was made for."""
        if self._function is not None:
            self._function()


class TimerQueue:
    """The timers of one root context, and its own tick.

    The host's clock can be set, so time is counted here from tick to tick: a step back never delays a timer.
    """

    def __init__(self, root: Context) -> None:
        self._root = root
        self._timers: list[Timer] = []
        self._order = 0
        self._tick_period = 0
        self._next_tick = 0
        self._armed = 0
        self._elapsed = 0
        self._seen = 0

    def set_tick_period(self, milliseconds: int) -> None:
        """The period of the root's own `on_tick`; 0 stops it."""
        now = self._now()
        self._tick_period = milliseconds * _NANOSECONDS
        self._next_tick = now + self._tick_period
        self._arm(now, again=True)

    def call_later(self, seconds: float, owner: Context, function: Callable[[], object]) -> Timer:
        """See `Context.call_later`."""
        if not 0 <= seconds < 4_000_000:
            raise ValueError(f"a delay is a number of seconds from 0 on, not {seconds}")
        now = self._now()
        self._order += 1
        timer = Timer(now + round(seconds * 1e9), self._order, owner, function)
        heappush(self._timers, timer)
        self._arm(now)
        return timer

    def ticked(self) -> tuple[list[Timer], bool]:
        """The timers that are due at this tick of the host, and whether the root's own tick is."""
        if not self._timers and self._armed == self._tick_period:
            return [], True
        host_now = bound.host.now_nanoseconds()
        now = self._elapsed = self._elapsed + max(self._armed, host_now - self._seen)
        self._seen = host_now
        due = []
        while self._timers and self._timers[0]._due <= now:
            timer = heappop(self._timers)
            if timer._function is not None and not timer._owner._deleted:
                due.append(timer)
        own = self._tick_period > 0 and self._next_tick <= now
        if own:
            self._next_tick = max(self._next_tick + self._tick_period, now + _NANOSECONDS)
        self._arm(now)
        return due, own

    def _now(self) -> int:
        """On the queue's own clock, which only ticks and additions move."""
        host_now = bound.host.now_nanoseconds()
        passed = host_now - self._seen
        if self._armed == 0:
            self._seen = host_now
            return self._elapsed
        return self._elapsed + min(max(passed, 0), self._armed)

    def _arm(self, now: int, *, again: bool = False) -> None:
        """Has the host tick when the next thing is due; `again` when it should count from now on."""
        if not self._timers:
            wanted = self._tick_period
        else:
            wait = self._timers[0]._due - now
            if self._tick_period:
                wait = min(wait, self._next_tick - now)
            wanted = max(-(-wait // _NANOSECONDS), 1) * _NANOSECONDS
        if wanted == self._armed and not again and not self._timers:
            return
        self._elapsed = now
        self._seen = bound.host.now_nanoseconds()
        self._armed = wanted
        previous = bound.enter(self._root.id)
        status = bound.host.set_tick_period(wanted // _NANOSECONDS)
        bound.leave(previous)
        check("set_tick_period", status)
