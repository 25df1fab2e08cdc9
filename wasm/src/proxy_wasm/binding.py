"""Which host the SDK talks to.

Inside WebAssembly there is one host for the whole life of the module. In a simulation each worker has its own, and is bound before
each of its callbacks. Everything here is set by the dispatcher; filters have no use for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from proxy_wasm.errors import NoHost, check

if TYPE_CHECKING:
    from proxy_wasm.contexts import Context
    from proxy_wasm.hostcalls import Host


class Machine(Protocol):
    """What calls and timers need of the dispatcher."""

    calls: dict[int, Any]
    """What waits for an answer of the host, by its token."""

    def run(self, owner: Context, function: Callable[[Any], object], argument: Any) -> None:
        """Calls user code on behalf of `owner`, in its context; whatever it raises is dealt with as `owner` declares."""


class _Absent:
    def __getattr__(self, name: str) -> Any:
        raise NoHost(f"{name}: there is no host here; hostcalls work only within callbacks")


class Binding:
    """The host, the virtual machine's state, and the context that the host's calls apply to."""

    __slots__ = ("context_id", "host", "machine")

    def __init__(self) -> None:
        self.host: Host = cast("Host", _Absent())
        self.machine: Machine = cast("Machine", _Absent())
        self.context_id = 0

    def release(self) -> None:
        """There is no host any more."""
        self.__init__()  # type: ignore[misc]

    def enter(self, context_id: int) -> int:
        """Makes the host's calls apply to that context for the rest of the callback; returns the one before, for `leave`.

        Raises `HostcallFailed` when the host no longer knows the context.
        """
        previous = self.context_id
        if previous != context_id:
            check("set_effective_context", self.host.set_effective_context(context_id))
            self.context_id = context_id
        return previous

    def leave(self, previous: int) -> None:
        """Undoes `enter`."""
        if self.context_id != previous:
            self.host.set_effective_context(previous)
            self.context_id = previous


bound = Binding()
