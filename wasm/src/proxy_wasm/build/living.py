"""What the saved interpreter calls by itself on its living objects, without looking whether an exception came of it.

The collector of garbage, above all, visits, clears and frees each object by a function of its type, in the middle of any code. Were such
a function cut, its exception would come out of whatever ran at that time. So types and modules are looked for in the saved memory: they
may outlive what made them, as the syntax tree's do. Memory that was freed is searched too, which at worst keeps a function too many.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from proxy_wasm.build.errors import FormatError
from proxy_wasm.build.lowering import INTERPRETER, MAIN, Parts
from proxy_wasm.build.wasm import Module

_WORD: Final = struct.Struct("<I")
_OB_TYPE: Final = 4
"""Where an object's type is, in bytes from its beginning, as all of the following (see `Include/cpython/object.h` and `moduleobject.h`)."""
_TP_FLAGS: Final = 84
_TP_SLOTS: Final = {"dealloc": 24, "traverse": 92, "clear": 96, "alloc": 152, "free": 160, "is_gc": 164, "del": 188, "finalize": 196}
_READY: Final = 1 << 12
_MD_DEF: Final = 12
_DEF_SLOTS: Final = {"traverse": 40, "clear": 44, "free": 48}


def living(parts: Parts) -> frozenset[int]:
    """The places of the interpreter's functions that living types and modules have for this. Raises FormatError if there are none."""
    main, interpreter = parts.module(MAIN), parts.module(INTERPRETER)
    memory = _Memory(main)
    table = parts.address("table_base")
    functions = {table + offset: place for offset, place in enumerate(interpreter.own_elements())}
    named = {item.name: item.index - interpreter.imported_functions for item in interpreter.exports if item.kind == "function"}
    functions |= {
        parts.address(item.name): named[item.name] for item in interpreter.imports if item.module == "GOT.func" and item.name in named
    }
    found = frozenset(
        functions[slot] for slot in _slots(memory, parts.address("PyType_Type"), parts.address("PyModule_Type")) if slot in functions
    )
    if not found:
        raise FormatError("no living type was found in the saved memory: is componentize-py of the pinned version?")
    return found


def _slots(memory: _Memory, type_type: int, module_type: int) -> Iterator[int]:
    """The functions' numbers in the table."""
    for place in memory.words(type_type):
        start = place - _OB_TYPE
        if memory.word(start + _TP_FLAGS) & _READY:
            yield from (memory.word(start + offset) for offset in _TP_SLOTS.values())
    for place in memory.words(module_type):
        definition = memory.word(place - _OB_TYPE + _MD_DEF)
        if definition:
            yield from (memory.word(definition + offset) for offset in _DEF_SLOTS.values())


class _Memory:
    """The saved memory; what no segment holds reads as 0."""

    def __init__(self, module: Module) -> None:
        self._bytes = bytearray(max((segment.address + len(segment.content) for segment in module.segments), default=0))
        for segment in module.segments:
            self._bytes[segment.address : segment.address + len(segment.content)] = segment.content

    def word(self, address: int) -> int:
        """The number at an address."""
        return int(_WORD.unpack_from(self._bytes, address)[0]) if 0 <= address <= len(self._bytes) - _WORD.size else 0

    def words(self, value: int) -> Iterator[int]:
        """The addresses of a number."""
        wanted = _WORD.pack(value)
        place = self._bytes.find(wanted)
        while place >= 0:
            if place % _WORD.size == 0:
                yield place
            place = self._bytes.find(wanted, place + 1)
