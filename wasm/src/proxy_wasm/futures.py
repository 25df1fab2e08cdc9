"""What is not there yet: the answer to a call, or the end of a wait."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from proxy_wasm.binding import bound

if TYPE_CHECKING:
    from proxy_wasm.contexts import Context

T = TypeVar("T")


class Future(Generic[T]):
    """Belongs to the context that made it. When that is deleted first, nobody is told any more.

    Wait for it with `await` in a callback that is `async def`, or let it call back.
    """

    def __init__(self, owner: Context) -> None:
        self._owner = owner
        self._done = False
        self._value: T | None = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Self], object]] = []

    def done(self) -> bool:
        """Whether there is a result or an error."""
        return self._done

    def result(self) -> T:
        """The result. Raises the error it ended with, or RuntimeError when it has not ended."""
        if not self._done:
            raise RuntimeError("there is no result yet: await it, or add a callback")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def error(self) -> Exception | None:
        """What it failed with; None when it has a result. Raises RuntimeError when it has not ended."""
        if not self._done:
            raise RuntimeError("there is no result yet: await it, or add a callback")
        return self._error

    def add_done_callback(self, function: Callable[[Self], object]) -> None:
        """Calls `function(self)` in the owner's context when it ends, or at once when it has."""
        if self._done:
            bound.machine.run(self._owner, function, self)
        else:
            self._callbacks.append(function)

    def __await__(self) -> Generator[Future[Any], None, T]:
        if not self._done:
            yield self
        return self.result()

    def _succeed(self, value: T) -> None:
        self._value = value
        self._end()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._end()

    def _end(self) -> None:
        self._done = True
        callbacks, self._callbacks = self._callbacks, []
        for function in callbacks:
            bound.machine.run(self._owner, function, self)
