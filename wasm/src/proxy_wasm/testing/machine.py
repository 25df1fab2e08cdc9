"""What a simulated worker runs: the filter's classes in this process, or a built module in wasmtime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from proxy_wasm.abi import Status
from proxy_wasm.binding import bound
from proxy_wasm.build.interface import Hostcall, hostcalls
from proxy_wasm.contexts import RootContext
from proxy_wasm.dispatcher import Dispatcher
from proxy_wasm.hostcalls import CALLBACKS
from proxy_wasm.testing.exchange import OnlyInProcess, Trapped

if TYPE_CHECKING:
    import wasmtime

    from proxy_wasm.hostcalls import Host

_STACK_BYTES = 1 << 20
_SIZES = {"u32": 4, "u64": 8}


class Machine(Protocol):
    """One virtual machine with a filter in it."""

    exported: frozenset[str]
    """The callbacks that it has."""

    def call(self, name: str, *arguments: int) -> int | None:
        """Runs one of them."""

    def root(self, context_id: int) -> RootContext:
        """The filter's object of that number. Raises `OnlyInProcess` when it is out of reach."""


class Program(Protocol):
    """What virtual machines are made of."""

    def machine(self, host: Host) -> Machine:
        """One more."""


class Classes:
    """A filter's classes."""

    def __init__(self, root_type: type[RootContext]) -> None:
        self._root_type = root_type

    def machine(self, host: Host) -> Machine:
        """A dispatcher of its own; what the filter keeps in its modules' globals is not its own."""
        return _InProcess(host, self._root_type)


class _InProcess:
    def __init__(self, host: Host, root_type: type[RootContext]) -> None:
        # The test's own random numbers are not for a filter to set.
        self._dispatcher = Dispatcher(host, root_type, reseed=False)
        self.exported = Dispatcher.callbacks(root_type)
        bound.release()

    def call(self, name: str, *arguments: int) -> int | None:
        self._dispatcher.bind()
        try:
            answer: int | None = getattr(self._dispatcher, name)(*arguments)
        finally:
            bound.release()
        return answer

    def root(self, context_id: int) -> RootContext:
        return self._dispatcher.roots[context_id]


class WasmModule:
    """A built module, compiled once for any number of simulations. Needs wasmtime: `pip install proxy-wasm-sdk[testing]`.

    Raises `wasmtime.WasmtimeError` when it is not a module. A trap raises `Trapped`.
    """

    def __init__(self, path: Path) -> None:
        try:
            import wasmtime
        except ImportError as error:
            raise ImportError("running a module needs wasmtime: pip install 'proxy-wasm-sdk[testing]'") from error

        settings = wasmtime.Config()
        settings.wasm_multi_memory = True
        settings.max_wasm_stack = _STACK_BYTES
        self._engine = wasmtime.Engine(settings)
        self._module = wasmtime.Module.from_file(self._engine, str(path))
        self.instances: list[WasmInstance] = []
        """The machines made of it, oldest first."""

    def machine(self, host: Host) -> Machine:
        """An instance with a memory of its own."""
        instance = WasmInstance(self._engine, self._module, host)
        self.instances.append(instance)
        return instance


class WasmInstance:
    """One instance of a module."""

    def __init__(self, engine: wasmtime.Engine, module: wasmtime.Module, host: Host) -> None:
        import wasmtime

        self._host = host
        self._store = wasmtime.Store(engine)
        known = {call.environment_name: call for call in hostcalls().values()}
        functions = []
        for item in module.imports:
            kind, name = item.type, item.name or ""
            if not isinstance(kind, wasmtime.FuncType):
                raise ValueError(f"the module imports {item.module}.{name}, which is no function")
            work = self._random if name == "random_get" else self._hostcall(known[name])
            functions.append(wasmtime.Func(self._store, kind, work))
        self._exports = wasmtime.Instance(self._store, module, functions).exports(self._store)
        self._memory: Any = self._exports["memory"]
        self.exported = frozenset(name for name in CALLBACKS if self._exports.get(f"proxy_{name}") is not None)
        self.call_export("_initialize")

    def call(self, name: str, *arguments: int) -> int | None:
        """Runs a callback."""
        answer: int | None = self.call_export(f"proxy_{name}", *arguments)
        return answer

    def root(self, context_id: int) -> RootContext:
        """Raises `OnlyInProcess`."""
        raise OnlyInProcess("a module's objects cannot be reached from outside")

    def call_export(self, name: str, *arguments: int) -> Any:
        """Runs any function that the module exports. Raises `Trapped`."""
        import wasmtime

        function: Any = self._exports[name]
        try:
            return function(self._store, *arguments)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            reason = str(error).rstrip().rpartition("\n")[2].strip()
            raise Trapped(f"the module trapped in {name}{arguments}: {reason}") from error

    def memory(self, name: str = "memory") -> bytes:
        """A copy of one of its memories."""
        found: Any = self._exports[name]
        return bytes(found.read(self._store, 0, found.data_len(self._store)))

    @property
    def memory_bytes(self) -> int:
        """How large its memory is."""
        return int(self._memory.data_len(self._store))

    def _random(self, address: int, length: int) -> int:
        self._memory.write(self._store, os.urandom(length), address)
        return 0

    def _hostcall(self, call: Hostcall) -> Any:
        function = getattr(self._host, call.python_name)

        def work(*raw: int) -> int:
            given = iter(raw)
            arguments: list[int | bytes] = []
            for parameter in call.parameters:
                number = next(given)
                if parameter.is_bytes:
                    length = next(given)
                    arguments.append(bytes(self._memory.read(self._store, number, number + length)) if length else b"")
                else:
                    arguments.append(
                        number % (1 << 32) if parameter.type == "u32" else number % (1 << 64) if parameter.type == "u64" else number
                    )
            answer = function(*arguments)
            if call.form == "status":
                return int(answer)
            if call.form == "option" and answer is None:
                return int(Status.NOT_FOUND)
            values = list(answer) if isinstance(answer, tuple) else [answer]
            status = values.pop(0) if call.form == "tuple" else Status.OK
            for kind, value in zip(call.answers, values, strict=True):
                self._put(kind, value, given)
            return int(status)

        return work

    def _put(self, kind: str, value: int | bytes, pointers: Any) -> None:
        """Writes one output to where the module wants it."""
        if isinstance(value, bytes):
            address = 0
            if value:
                address = self.call_export("malloc", len(value))
                self._memory.write(self._store, value, address)
            self._write(next(pointers), address, 4)
            self._write(next(pointers), len(value), 4)
        else:
            self._write(next(pointers), value, _SIZES[kind])

    def _write(self, address: int, value: int, size: int) -> None:
        self._memory.write(self._store, (value % (1 << 8 * size)).to_bytes(size, "little"), address)
