"""Callbacks that are `async def`: driven from one answer of the host to the next, without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from proxy_wasm.futures import Future

if TYPE_CHECKING:
    from proxy_wasm.contexts import Context


class Task:
    """A coroutine that a callback answered.

    `ended` is called once, with the task; never after `close`. Until a task is `detached`, its callback has not answered the host.
    """

    __slots__ = ("_coroutine", "_ended", "answer", "answered_before", "context", "detached", "error", "held", "over", "side", "where")

    def __init__(
        self, context: Context, coroutine: Coroutine[Any, Any, Any], where: str, side: int | None, ended: Callable[[Task], None]
    ) -> None:
        self.context = context
        self.where = where
        self.side = side
        """The direction that is paused meanwhile."""
        self.held: list[tuple[str, tuple[int, ...]]] = []
        """Callbacks of that direction that came meanwhile, with their arguments."""
        self.detached = False
        self.over = False
        self.answer: Any = None
        self.error: BaseException | None = None
        self.answered_before = False
        """Whether a local response had been sent when it began."""
        self._coroutine = coroutine
        self._ended = ended

    def step(self, _: object = None) -> None:
        """Runs on until it waits for something that is not there yet, or ends."""
        send: Callable[[], Any] = self._begin
        while True:
            try:
                awaited = send()
            except StopIteration as stop:
                self.answer = stop.value
                break
            except BaseException as error:
                self.error = error
                break
            if isinstance(awaited, Future):
                awaited._callbacks.append(self.step)
                return
            send = self._refuse
        self.over = True
        self._ended(self)

    def close(self) -> None:
        """Ends the coroutine where it waits: GeneratorExit is raised there. Raises what it raises then."""
        self._coroutine.close()

    def _begin(self) -> Any:
        return self._coroutine.send(None)

    def _refuse(self) -> Any:
        message = "a callback can await only calls and sleeps of proxy_wasm: there is no event loop"
        return self._coroutine.throw(RuntimeError(message))
