"""Cuts from the interpreter what a filter cannot reach, so that Envoy loads it in half the time.

What is cut is not left to chance: it is whole areas, chosen by what the filter had imported when the interpreter was saved. A function
that is cut raises RuntimeError, so that whoever should get to one after all (by `eval`, say) meets an ordinary exception, which the
dispatcher's guards handle like any other; it never ends the VM.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from proxy_wasm.build.areas import ALWAYS, COMPILER, FUNCTIONS, MODULES, Area
from proxy_wasm.build.errors import FormatError
from proxy_wasm.build.leb128 import signed, unsigned
from proxy_wasm.build.living import living
from proxy_wasm.build.lowering import INTERPRETER, MAIN, Parts
from proxy_wasm.build.saved import cut_modules
from proxy_wasm.build.wasm import F32, F64, I32, I64, Module

MESSAGE: Final = b"this part of Python was cut from the filter when it was built: see proxy-wasm build --help\0"


def trim(parts: Parts, *, keep_compiler: bool = False) -> tuple[Parts, int]:
    """The same parts with another interpreter, and how many of its functions were cut. Raises FormatError when it is not the known one."""
    interpreter, memory = parts.module(INTERPRETER), parts.module(MAIN)
    message = memory.find(MESSAGE)
    if message is None:
        raise FormatError("the saved memory lacks the message of what is cut")
    cut = cuttable(parts, keep_compiler=keep_compiler)
    raising = _Raising(interpreter, message)
    bodies = {place: raising.body(place, minus_one=minus_one) for place, minus_one in cut.items()}
    return parts.with_module(INTERPRETER, interpreter.with_bodies(bodies)), len(bodies)


def cuttable(parts: Parts, *, keep_compiler: bool = False) -> dict[int, bool]:
    """The functions that `trim` cuts, by their places in the module, and of each whether it reports exceptions by -1."""
    areas = [Area(name, MODULES[name]) for name in cut_modules(parts.module(MAIN))]
    areas += [*ALWAYS, *(() if keep_compiler else COMPILER)]
    kept = living(parts)
    return {place: minus_one for place, minus_one in functions(parts.module(INTERPRETER), areas).items() if place not in kept}


def functions(interpreter: Module, areas: list[Area]) -> dict[int, bool]:
    """The functions of these areas, by their places in the module, and of each whether it reports exceptions by -1."""
    imported = interpreter.imported_functions
    names = [interpreter.function_names.get(imported + place, "") for place in range(len(interpreter.bodies))]
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    if not digest.startswith(FUNCTIONS):
        raise FormatError(f"the interpreter is not the one that is known here: is componentize-py of the pinned version? ({digest})")
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        places.setdefault(name, place)
    starts = sorted(place for name, place in places.items() if name.startswith("PyInit_"))

    def run(first: str, last: str) -> Iterator[int]:
        end = places[last] + 1 if last else next(start for start in starts if start > places[first])
        return iter(range(places[first], end))

    return {
        place: names[place] in area.minus_one
        for area in areas
        for first, last in area.runs
        for place in run(first, last)
        if names[place] not in area.kept
    }


class _Raising:
    """Makes bodies of functions that raise RuntimeError."""

    def __init__(self, interpreter: Module, message: int) -> None:
        exports = {item.name: item for item in interpreter.exports}
        globals_ = [f"{item.module}.{item.name}" for item in interpreter.imports if item.kind == "global"]
        self._module = interpreter
        address = interpreter.constants()[exports["PyExc_RuntimeError"].index]
        self._raise = b"".join(
            (
                b"\x23" + unsigned(globals_.index("env.__memory_base")),
                b"\x41" + signed(address),
                b"\x6a\x28\x02\x00",  # add, load the class
                b"\x41" + signed(message),
                b"\x10" + unsigned(exports["PyErr_SetString"].index),
            )
        )

    def body(self, place: int, *, minus_one: bool) -> bytes:
        """A body for the function at that place: no locals, the exception, and an answer of its type."""
        results = self._module.types[self._module.function_types[place]].results
        answers = {I32: b"\x41" + signed(-1 if minus_one else 0), I64: b"\x42\x00", F32: b"\x43" + bytes(4), F64: b"\x44" + bytes(8)}
        return b"\x00" + self._raise + b"".join(answers[result] for result in results) + b"\x0b"
