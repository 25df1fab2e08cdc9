"""From a component to one core module.

The component ties some forty core modules together. Here each import is renamed to the export that it is tied to, so that binaryen's
`wasm-merge` can join them; what remains are the hostcalls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from proxy_wasm.build import saved
from proxy_wasm.build.component import Builtin, Component, Lower, Provided
from proxy_wasm.build.errors import FormatError
from proxy_wasm.build.interface import INTERFACE, Callback, Hostcall, hostcalls
from proxy_wasm.build.shim import PYTHON, PYTHON_FUNCTIONS, WASI, exports, hostcall_export, shim
from proxy_wasm.build.tools import Binaryen
from proxy_wasm.build.wasm import Module

_SHIM = "shim"
MAIN = "main"
INTERPRETER = "libpython3.14.so"
_ALLOCATOR = "libc.so"


@dataclass(frozen=True)
class Parts:
    """A component's core modules as `wasm-merge` can join them, by the numbers of their instances, and the component that they are of."""

    component: Component
    modules: dict[int, Module]

    @classmethod
    def of(cls, data: bytes) -> Parts:
        """Raises FormatError when a module runs something by itself: nothing would do so in the joined module."""
        component = Component(data)
        modules = {number: Module.parse(component.module(instance.of)) for number, instance in component.instances.items()}
        for number, module in modules.items():
            if module.has_start:
                raise FormatError(f"the module {component.module_name(component.instances[number].of)} has a start function")
        return cls(component, modules)

    def number(self, name: str) -> int:
        """The instance of the core module of that name. Raises FormatError when there is not just one."""
        found = [number for number, instance in self.component.instances.items() if self.component.module_name(instance.of) == name]
        if len(found) != 1:
            raise FormatError(f"the component has {len(found)} modules {name}, not one: is componentize-py of the pinned version?")
        return found[0]

    def module(self, name: str) -> Module:
        """The core module of that name."""
        return self.modules[self.number(name)]

    def address(self, name: str) -> int:
        """The address of what the interpreter calls so, or of its part of the table (`table_base`). Raises FormatError."""
        main = self.module(MAIN)
        index = next((item.index for item in main.exports if item.kind == "global" and item.name == f"{INTERPRETER}:{name}"), None)
        value = None if index is None else main.constants().get(index)
        if value is None:
            raise FormatError(f"the component does not tell the interpreter's {name}: is componentize-py of the pinned version?")
        return value

    def with_module(self, name: str, module: Module) -> Parts:
        """The same with another core module of that name."""
        return replace(self, modules={**self.modules, self.number(name): module})


def lower(parts: Parts, callbacks: Iterable[Callback], *, binaryen: Binaryen, folder: Path, names: bool = False) -> Path:
    """Joins them in `folder`; returns the path of a module that exports what the ABI asks for. `names` keeps the functions' names."""
    component = parts.component
    used: dict[str, Hostcall] = {}

    def provider(item: Provided | Lower | Builtin) -> tuple[str, str]:
        if isinstance(item, Provided):
            module = component.module_name(component.instances[item.instance].of)
            stand_in = WASI.get((module, item.name))
            return (_SHIM, stand_in) if stand_in else (_instance(item.instance), _qualified(item.instance, item.name))
        if isinstance(item, Lower):
            interface, name = component.import_of(item)
            if interface != INTERFACE or name not in hostcalls():
                raise FormatError(f"the component imports {interface}#{name}, which Envoy does not have")
            used[name] = hostcalls()[name]
            return _SHIM, hostcall_export(name)
        raise FormatError(f"the component uses the built-in operation {item.operation:#x}, which Envoy does not have")

    files: dict[str, Path] = {}
    for number, module in parts.modules.items():
        arguments = component.instances[number].arguments
        tied = []
        for item in module.imports:
            where, name = provider(component.resolve_export(arguments[item.module], item.name))
            tied.append(replace(item, module=where, name=name))
        # Export names have to be unique among all modules that are merged.
        changed = module.with_imports(tied).with_exports(replace(item, name=_qualified(number, item.name)) for item in module.exports)
        path = folder / f"{_instance(number)}.wasm"
        path.write_bytes((changed.without_custom("x") if names else changed.without_custom()).serialize())
        files[_instance(number)] = path

    exported = tuple(callbacks)
    needed: dict[str, Provided | Lower | Builtin] = {
        "memory": component.resolve("memory", 0),
        "realloc": component.resolve("function", component.any_realloc()),
        "free": Provided(parts.number(_ALLOCATOR), "free"),
    }
    interpreter = parts.number(INTERPRETER)
    needed |= {name: Provided(interpreter, name) for name in PYTHON_FUNCTIONS}
    needed["table"] = Provided(parts.number(MAIN), "__indirect_function_table")
    main = parts.module(MAIN)
    addresses = saved.callbacks(main)
    text = folder / "shim.wat"
    text.write_text(
        shim(
            used.values(),
            exported,
            addresses,
            saved.host_class(main),
            parts.address("_Py_NoneStruct"),
            frees_bytes=True,
        )
    )
    assembled = Module.parse(binaryen.assemble(text, folder / "assembled.wasm").read_bytes())
    tied = []
    for item in assembled.imports:
        where, name = provider(needed[item.name]) if item.module == PYTHON else (item.module, item.name)
        tied.append(replace(item, module=where, name=name))
    path = folder / "shim.wasm"
    path.write_bytes(assembled.with_imports(tied).serialize())
    joined = Module.parse(binaryen.merge({_SHIM: path, **files}, folder / "joined.wasm", names=names).read_bytes())
    wanted = exports(exported)
    path = folder / "lowered.wasm"
    path.write_bytes(joined.with_exports(item for item in joined.exports if item.name in wanted).serialize())
    return path


def _instance(number: int) -> str:
    return f"instance{number}"


def _qualified(number: int, name: str) -> str:
    return f"{number}.{name}"
