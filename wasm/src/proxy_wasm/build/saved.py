"""What the entry module leaves in the saved memory for the build to find: lines of names and numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from proxy_wasm.build.errors import FormatError
from proxy_wasm.build.wasm import Module

CUT_MODULES: Final = "proxy-wasm cut modules: "
"""Begins the line of the modules that the filter did not import."""
CALLBACKS: Final = "proxy-wasm callbacks: "
"""Begins the line of the callbacks, each with the address of the Python object that is called for it."""
HOST: Final = "proxy-wasm host: "
"""Begins the line of the class of the host's functions, and of each of these."""


@dataclass(frozen=True, slots=True)
class HostClass:
    """Where the host's functions are in the saved memory."""

    address: int
    functions: dict[str, tuple[int, int]]
    """The addresses of the Python function that stands there now and of its name as C has it, by the hostcall's name in Python."""


def host_class(memory: Module) -> HostClass:
    """Raises FormatError when the line is missing."""
    (_, _, address), *functions = (item.partition("=") for item in _line(memory, HOST))
    places = {name: tuple(map(int, both.split(":"))) for name, _, both in functions}
    return HostClass(int(address), {name: (function, text) for name, (function, text) in places.items()})


def cut_modules(memory: Module) -> list[str]:
    """Their names. Raises FormatError when the line is missing."""
    return _line(memory, CUT_MODULES)


def callbacks(memory: Module) -> dict[str, int]:
    """The address of each callback's object, by its name. Raises FormatError when the line is missing."""
    return {name: int(address) for name, _, address in (item.partition("=") for item in _line(memory, CALLBACKS))}


def _line(memory: Module, start: str) -> list[str]:
    """The items of a line. Its beginning lies in the memory more than once, the line does once."""
    pattern = re.compile(re.escape(start.encode()) + rb"([A-Za-z0-9_=:,]*)\n")
    for segment in memory.segments:
        found = pattern.search(segment.content)
        if found:
            return [item for item in found[1].decode().split(",") if item]
    raise FormatError(f"the saved memory lacks the line {start!r}")
