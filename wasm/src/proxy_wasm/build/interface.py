"""The hostcalls and callbacks as the build sees them: what the interface description says, and the ABI's own names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from proxy_wasm.build.errors import BuildError
from proxy_wasm.hostcalls import ANSWERING, CALLBACKS

WORLD: Final = "filter"
INTERFACE: Final = "proxy-wasm:sdk/host@0.2.1"
ABI_MARKER: Final = "proxy_abi_version_0_2_1"
"""The export that tells a host the ABI's version."""

_OWN_NAMES: Final = {
    "get-header": "proxy_get_header_map_value",
    "get-header-pairs": "proxy_get_header_map_pairs",
    "set-header-pairs": "proxy_set_header_map_pairs",
    "add-header": "proxy_add_header_map_value",
    "replace-header": "proxy_replace_header_map_value",
    "remove-header": "proxy_remove_header_map_value",
    "get-buffer": "proxy_get_buffer_bytes",
    "set-buffer": "proxy_set_buffer_bytes",
    "now-nanoseconds": "proxy_get_current_time_nanoseconds",
    "set-tick-period": "proxy_set_tick_period_milliseconds",
}
_FUNCTION: Final = re.compile(r"^ {2}(?P<name>[a-z0-9-]+): func\((?P<parameters>[^)]*)\) -> (?P<result>.+);$", re.MULTILINE)
_SCALARS: Final = {"u32": "i32", "s32": "i32", "u64": "i64", "s64": "i64"}
_BYTES: Final = "list<u8>"


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of a hostcall; `type` is as in the interface description."""

    name: str
    type: str

    @property
    def is_bytes(self) -> bool:
        """Whether it is a pointer and a length."""
        return self.type == _BYTES

    @property
    def core_types(self) -> tuple[str, ...]:
        """What it is in a core module."""
        return ("i32", "i32") if self.is_bytes else (_SCALARS[self.type],)


@dataclass(frozen=True, slots=True)
class Hostcall:
    """A function of the host."""

    name: str
    parameters: tuple[Parameter, ...]
    result: str

    @property
    def python_name(self) -> str:
        """Its name in `proxy_wasm.hostcalls.Host`."""
        return self.name.replace("-", "_")

    @property
    def environment_name(self) -> str:
        """Its name in the ABI, among the imports from `env`."""
        return _OWN_NAMES.get(self.name, "proxy_" + self.python_name)

    @property
    def core_types(self) -> tuple[str, ...]:
        """Its arguments in a core module."""
        return tuple(core for parameter in self.parameters for core in parameter.core_types)

    @property
    def form(self) -> str:
        """How it answers: `status`, `value`, `option` or `tuple`."""
        return "status" if self.result == "u32" else "value" if self.result == "u64" else self.result.partition("<")[0]

    @property
    def answers(self) -> tuple[str, ...]:
        """The types of what it answers besides the status."""
        if self.form in ("status", "value"):
            return (self.result,) if self.form == "value" else ()
        inner = self.result.partition("<")[2][:-1]
        fields = inner[len("tuple<") : -1].split(", ") if inner.startswith("tuple<") else inner.split(", ")
        return tuple(fields[1:] if self.form == "tuple" else fields)

    @property
    def outputs(self) -> tuple[int, ...]:
        """Where in the memory for the answer the host has to put each of its outputs."""
        if self.form in ("status", "value"):
            return ()
        fields = self.answers  # a tuple's status is at 0, and is no output
        offset = 8 if "u64" in fields else 4
        places = []
        for item in fields:
            places.append(offset)
            if item == _BYTES:
                places.append(offset + 4)
            offset += 4 if item == "u32" else 8
        return tuple(places)


@dataclass(frozen=True, slots=True)
class Callback:
    """A function of the filter."""

    name: str
    parameters: tuple[str, ...]
    answers: bool

    @property
    def wit_name(self) -> str:
        """Its name in the interface description."""
        return self.name.replace("_", "-")

    @property
    def export_name(self) -> str:
        """Its name in the ABI."""
        return "proxy_" + self.name


@cache
def description() -> str:
    """The interface description's text."""
    return resources.files("proxy_wasm.build").joinpath("host.wit").read_text()


@cache
def hostcalls() -> dict[str, Hostcall]:
    """All hostcalls, by their names in the interface description, in order."""
    found = {}
    for match in _FUNCTION.finditer(description()):
        named = (parameter.split(": ") for parameter in match["parameters"].split(", ") if parameter)
        found[match["name"]] = Hostcall(match["name"], tuple(Parameter(name, type_) for name, type_ in named), match["result"])
    return found


def callbacks(names: Iterable[str]) -> tuple[Callback, ...]:
    """These callbacks, in the ABI's order. Raises BuildError for a name that the ABI does not have."""
    wanted = set(names)
    unknown = wanted - CALLBACKS.keys()
    if unknown:
        raise BuildError(f"not callbacks of proxy-wasm 0.2.1: {', '.join(sorted(unknown))}")
    return tuple(Callback(name, CALLBACKS[name], name in ANSWERING) for name in CALLBACKS if name in wanted)


def world(exported: Iterable[Callback]) -> str:
    """The whole interface description of a filter that exports these callbacks."""
    lines = []
    for callback in exported:
        parameters = ", ".join(f"{name.replace('_', '-')}: u32" for name in callback.parameters)
        lines.append(f"  export {callback.wit_name}: func({parameters}){' -> u32' if callback.answers else ''};")
    return "\n".join([description(), f"world {WORLD} {{", "  import host;", *lines, "}", ""])
