"""One simulated worker: a virtual machine of its own, with its own dispatcher and its own contexts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from proxy_wasm.abi import BufferType
from proxy_wasm.contexts import RootContext
from proxy_wasm.hostcalls import ANSWERING
from proxy_wasm.testing.exchange import ConfigurationRefused
from proxy_wasm.testing.host import ForeignFunction, SimulatedHost
from proxy_wasm.testing.machine import Program
from proxy_wasm.testing.streams import SimulatedStream
from proxy_wasm.testing.world import World

_SUCCESS = frozenset({"on_vm_start", "on_configure", "on_done"})


class Worker:
    """Runs callbacks one at a time, and after each what it asked for."""

    def __init__(
        self,
        world: World,
        number: int,
        program: Program,
        properties: dict[bytes, bytes],
        foreign_functions: dict[str, ForeignFunction],
    ) -> None:
        self.world = world
        self.number = number
        self.properties = properties
        self.streams: dict[int, SimulatedStream] = {}
        self.host = SimulatedHost(self, foreign_functions)
        self.machine = program.machine(self.host)
        self.root_id = 0
        """The root context that new streams belong to."""
        self._contexts = 0
        self._logged = 0
        self._roots: set[int] = set()
        self._ending: set[int] = set()
        self._ticks: dict[int, tuple[int, int]] = {}
        self._after: deque[Callable[[], None]] = deque()

    @property
    def root(self) -> RootContext:
        """The filter's own object. Raises `OnlyInProcess` when it runs as a module."""
        return self.machine.root(self.root_id)

    def start(self, vm_configuration: bytes, configuration: bytes) -> None:
        """Loads the filter."""
        root_id = self._new_root()
        self._configure("on_vm_start", root_id, BufferType.VM_CONFIGURATION, vm_configuration)
        self._configure("on_configure", root_id, BufferType.PLUGIN_CONFIGURATION, configuration)
        self.root_id = root_id

    def configure(self, configuration: bytes) -> None:
        """A new root context takes over; the old one ends with its last stream."""
        old, new = self.root_id, self._new_root()
        self._configure("on_configure", new, BufferType.PLUGIN_CONFIGURATION, configuration)
        self.root_id = new
        self._end_root(old)

    def stop(self) -> None:
        """All ends."""
        for stream in list(self.streams.values()):
            stream.reset()
        old, self.root_id = self.root_id, 0
        self._end_root(old)

    def callback(self, name: str, *arguments: int) -> int:
        """Runs one callback of the filter, and what it asked for; what the filter does not export is answered as the host does."""
        answer = int(name in _SUCCESS)
        if name in self.machine.exported:
            self.world.enter()
            self.host.context_id = arguments[0]
            try:
                result = self.machine.call(name, *arguments)
            finally:
                self.world.leave()
            if name in ANSWERING and result is not None:
                answer = int(result)
        while self._after:
            self._after.popleft()()
        return answer

    def after(self, action: Callable[[], None]) -> None:
        """Does something when the callback has ended."""
        self._after.append(action)

    def next_context_id(self) -> int:
        """A number for a context."""
        self._contexts += 1
        return self._contexts

    def knows(self, context_id: int) -> bool:
        """Whether there is such a context."""
        return context_id in self.streams or context_id in self._roots

    def forget(self, context_id: int) -> None:
        """The stream is gone."""
        stream = self.streams.pop(context_id)
        if stream.root_id != self.root_id:
            self._end_root(stream.root_id)

    def done(self, context_id: int) -> bool:
        """The filter has finished what it put off the end of a root context for."""
        if context_id not in self._ending:
            return False
        self.after(lambda: self._delete_root(context_id))
        return True

    def set_tick(self, root_id: int, milliseconds: int) -> None:
        """Ticks from now on, or not any more."""
        self._ticks.pop(root_id, None)
        if milliseconds:
            period = milliseconds * 1_000_000
            self._ticks[root_id] = (self.world.now + period, period)

    def next_tick(self) -> int | None:
        """When the next tick is due, in nanoseconds since the Unix epoch."""
        return min((due for due, _ in self._ticks.values()), default=None)

    def tick(self) -> None:
        """The next tick is due."""
        root_id, (due, period) = min(self._ticks.items(), key=lambda item: item[1][0])
        self._ticks[root_id] = (due + period, period)
        self.callback("on_tick", root_id)
        self.world.settle()

    def shift(self, step: int) -> None:
        """The clock was set; ticks come after as much time as before."""
        self._ticks = {root_id: (due + step, period) for root_id, (due, period) in self._ticks.items()}

    def _new_root(self) -> int:
        self._logged = len(self.world.logs)
        root_id = self.next_context_id()
        self._roots.add(root_id)
        self.callback("on_context_create", root_id, 0)
        return root_id

    def _configure(self, name: str, root_id: int, buffer_type: BufferType, configuration: bytes) -> None:
        self.host.configuration = {buffer_type: configuration}
        accepted = self.callback(name, root_id, len(configuration))
        self.host.configuration = {}
        self.world.settle()
        if not accepted:
            self._delete_root(root_id)
            raise ConfigurationRefused("\n".join(line.message for line in self.world.logs[self._logged :]) or f"{name} answered False")

    def _end_root(self, root_id: int) -> None:
        if root_id not in self._roots or any(stream.root_id == root_id for stream in self.streams.values()):
            return
        self._ending.add(root_id)
        if self.callback("on_done", root_id):
            self._delete_root(root_id)

    def _delete_root(self, root_id: int) -> None:
        if root_id in self._roots:
            self.callback("on_log", root_id)
            self.callback("on_delete", root_id)
            self._roots.discard(root_id)
            self._ending.discard(root_id)
            self._ticks.pop(root_id, None)
