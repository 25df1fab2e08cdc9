"""Core modules of WebAssembly: as much of the binary format as the build has to read and to write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, TypeVar

from proxy_wasm.build.errors import FormatError
from proxy_wasm.build.leb128 import Reader, signed, text, unsigned

Item = TypeVar("Item")

MAGIC: Final = b"\0asm\1\0\0\0"
_COMPONENT: Final = b"\0asm\x0d\0\1\0"
KINDS: Final = ("function", "table", "memory", "global", "tag")
SECTIONS: Final = (
    "custom", "type", "import", "function", "table", "memory", "global", "export", "start", "element", "code", "data", "data count", "tag",
)  # fmt: skip
_CUSTOM, _TYPE, _IMPORT, _FUNCTION, _MEMORY, _GLOBAL, _EXPORT, _START, _ELEMENT, _CODE, _DATA = 0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11

_END: Final = 0x0B
_SUMS: Final = frozenset({0x6A, 0x6B, 0x6C, 0x7C, 0x7D, 0x7E})
"""Additions, subtractions and products, which values of globals may be made of."""

I32: Final = 0x7F
I64: Final = 0x7E
F32: Final = 0x7D
F64: Final = 0x7C


@dataclass(frozen=True, slots=True)
class FunctionType:
    """Types of parameters and results, as the format's bytes."""

    parameters: bytes
    results: bytes


@dataclass(frozen=True, slots=True)
class Import:
    """What a module needs: `module` and `name`, its kind, and its type as the format writes it."""

    module: str
    name: str
    kind: str
    description: bytes


@dataclass(frozen=True, slots=True)
class Export:
    """What a module gives."""

    name: str
    kind: str
    index: int


@dataclass(frozen=True, slots=True)
class Section:
    """A section's number and content; `name` is that of a custom section, whose content it is left out of."""

    number: int
    content: bytes
    name: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes that a module puts into memory at a fixed address."""

    address: int
    content: bytes


@dataclass(frozen=True)
class Module:
    """A core module, as its sections in order. What is read of them is read when it is asked for."""

    sections: tuple[Section, ...] = field(repr=False)

    @classmethod
    def parse(cls, data: bytes) -> Module:
        """Raises FormatError when it is no core module."""
        if data[:8] != MAGIC:
            if data[:8] == _COMPONENT:
                raise FormatError("a component of WebAssembly, and not a core module")
            raise FormatError("not a core module of WebAssembly")
        reader = Reader(data, 8)
        sections = []
        while not reader.exhausted:
            number = reader.byte()
            part = reader.part(reader.unsigned())
            if number >= len(SECTIONS):
                raise FormatError(f"the module has a section {number}, which is not known here")
            name = part.text() if number == _CUSTOM else ""
            sections.append(Section(number, part.data[part.position : part.end], name))
        return cls(tuple(sections))

    def serialize(self) -> bytes:
        """The module's bytes."""
        out = [MAGIC]
        for section in self.sections:
            content = text(section.name) + section.content if section.number == _CUSTOM else section.content
            out += [bytes([section.number]), unsigned(len(content)), content]
        return b"".join(out)

    def _reader(self, number: int) -> Reader | None:
        return next((Reader(section.content) for section in self.sections if section.number == number), None)

    def _read(self, number: int, read: Callable[[Reader], Item]) -> tuple[Item, ...]:
        reader = self._reader(number)
        return () if reader is None else tuple(read(reader) for _ in range(reader.unsigned()))

    @cached_property
    def types(self) -> tuple[FunctionType, ...]:
        """The types of functions."""
        return self._read(_TYPE, _function_type)

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """What it needs, in order."""
        return self._read(_IMPORT, _import)

    @cached_property
    def exports(self) -> tuple[Export, ...]:
        """What it gives, in order."""
        return self._read(_EXPORT, lambda reader: Export(reader.text(), reader.one_of(KINDS, "the kind of export"), reader.unsigned()))

    @cached_property
    def function_types(self) -> tuple[int, ...]:
        """The number of the type of each function that it defines."""
        return self._read(_FUNCTION, Reader.unsigned)

    @cached_property
    def bodies(self) -> tuple[bytes, ...]:
        """Each function that it defines: its locals and its code."""
        return self._read(_CODE, lambda reader: reader.take(reader.unsigned()))

    @cached_property
    def imported_functions(self) -> int:
        """How many functions it imports: the number of the first that it defines."""
        return sum(item.kind == "function" for item in self.imports)

    @cached_property
    def has_start(self) -> bool:
        """Whether something runs by itself."""
        return self._reader(_START) is not None

    @cached_property
    def function_names(self) -> dict[int, str]:
        """The names of functions, where the module tells them."""
        content = self.custom("name")
        names: dict[int, str] = {}
        reader = Reader(content or b"")
        while not reader.exhausted:
            number = reader.byte()
            part = reader.part(reader.unsigned())
            if number == 1:
                for _ in range(part.unsigned()):
                    index = part.unsigned()
                    names[index] = part.text()
        return names

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """What it puts into memory. Raises FormatError for segments without a fixed address."""
        return self._read(_DATA, _segment)

    def custom(self, name: str) -> bytes | None:
        """The content of a custom section."""
        return next((section.content for section in self.sections if section.number == _CUSTOM and section.name == name), None)

    def sizes(self) -> dict[str, int]:
        """Bytes by section."""
        sizes: dict[str, int] = {}
        for section in self.sections:
            name = f"custom {section.name}" if section.number == _CUSTOM else SECTIONS[section.number]
            sizes[name] = sizes.get(name, 0) + len(section.content)
        return sizes

    def find(self, content: bytes) -> int | None:
        """The address in memory at which these bytes first occur."""
        for segment in self.segments:
            place = segment.content.find(content)
            if place >= 0:
                return segment.address + place
        return None

    def constants(self) -> dict[int, int]:
        """The values of its own globals of type i32 that are constants, by their numbers. Raises FormatError for values of other kinds."""
        reader = self._reader(_GLOBAL)
        values: dict[int, int] = {}
        if reader is None:
            return values
        first = sum(item.kind == "global" for item in self.imports)
        for index in range(first, first + reader.unsigned()):
            reader.take(2)
            parts = 0
            while (opcode := reader.byte()) != _END:
                parts += 1
                if opcode == 0x41:
                    values[index] = reader.signed()
                elif opcode == 0x42:
                    reader.signed()
                elif opcode == 0x23:
                    reader.unsigned()
                elif opcode not in _SUMS:
                    raise FormatError(f"a global's value has the operation {opcode:#x}, which is not known here")
            if parts != 1:
                values.pop(index, None)
        return values

    def own_elements(self) -> tuple[int, ...]:
        """The places of its functions in the one segment of its table, in order. Raises FormatError if there is more, or another kind."""
        reader = self._reader(_ELEMENT)
        if reader is None:
            return ()
        if (reader.unsigned(), reader.unsigned(), reader.byte()) != (1, 0, 0x23):
            raise FormatError("the table's elements are not one segment whose place is told by a global")
        reader.unsigned()
        if reader.byte() != _END:
            raise FormatError("the place of the table's elements is no constant")
        return tuple(reader.unsigned() - self.imported_functions for _ in range(reader.unsigned()))

    # Changed copies

    def with_imports(self, imports: Iterable[Import]) -> Module:
        """The same with other imports of the same kinds in the same order."""
        items = [text(item.module) + text(item.name) + bytes([KINDS.index(item.kind)]) + item.description for item in imports]
        return self._with(_IMPORT, _vector(items))

    def with_exports(self, exports: Iterable[Export]) -> Module:
        """The same with other exports."""
        items = [text(item.name) + bytes([KINDS.index(item.kind)]) + unsigned(item.index) for item in exports]
        return self._with(_EXPORT, _vector(items))

    def with_bodies(self, changed: Mapping[int, bytes]) -> Module:
        """The same with other bodies, by the place among the functions that it defines."""
        items = []
        for place, body in enumerate(self.bodies):
            now = changed.get(place, body)
            items += [unsigned(len(now)), now]
        return self._with(_CODE, unsigned(len(self.bodies)) + b"".join(items))

    @staticmethod
    def after_locals(body: bytes, code: bytes) -> bytes:
        """A function's body with code put before its own."""
        reader = Reader(body)
        for _ in range(reader.unsigned()):
            reader.unsigned()
            reader.byte()
        return body[: reader.position] + code + body[reader.position :]

    def with_second_memory(self, name: str, pages: int) -> Module:
        """The same with one more memory of its own, exported. Raises FormatError when it has not just one."""
        reader = self._reader(_MEMORY)
        if reader is None or reader.unsigned() != 1:
            raise FormatError("the module does not have one memory of its own")
        exported = self.with_exports((*self.exports, Export(name, "memory", 1)))
        return exported._with(_MEMORY, unsigned(2) + reader.data[reader.position : reader.end] + b"\0" + unsigned(pages))

    def with_segments(self, segments: Iterable[Segment]) -> Module:
        """The same with other content for memory."""
        items = [b"\0\x41" + _signed32(item.address) + b"\x0b" + unsigned(len(item.content)) + item.content for item in segments]
        changed = self._with(_DATA, _vector(items))
        return replace(changed, sections=tuple(section for section in changed.sections if section.number != 12))

    def with_function_names(self, names: Mapping[int, str]) -> Module:
        """The same with these names, and no others."""
        content = _vector([unsigned(index) + text(name) for index, name in sorted(names.items())])
        return self.without_custom("name").with_custom("name", b"\1" + unsigned(len(content)) + content)

    def with_custom(self, name: str, content: bytes) -> Module:
        """The same with a custom section at the end."""
        return replace(self, sections=(*self.without_custom(name).sections, Section(_CUSTOM, content, name)))

    def without_custom(self, *names: str) -> Module:
        """The same without custom sections of these names; without any when none is named."""
        kept = (section for section in self.sections if section.number != _CUSTOM or (names and section.name not in names))
        return replace(self, sections=tuple(kept))

    def _with(self, number: int, content: bytes) -> Module:
        return replace(
            self, sections=tuple(replace(section, content=content) if section.number == number else section for section in self.sections)
        )


def _vector(items: list[bytes]) -> bytes:
    return unsigned(len(items)) + b"".join(items)


def _signed32(value: int) -> bytes:
    return signed(value - (1 << 32) if value >= 1 << 31 else value)


def _function_type(reader: Reader) -> FunctionType:
    if reader.byte() != 0x60:
        raise FormatError("a type is no function's")
    return FunctionType(reader.take(reader.unsigned()), reader.take(reader.unsigned()))


def _limits(reader: Reader) -> None:
    flags = reader.unsigned()
    reader.unsigned()
    if flags & 1:
        reader.unsigned()


def _import(reader: Reader) -> Import:
    module, name, kind = reader.text(), reader.text(), reader.byte()
    start = reader.position
    if kind == 0:
        reader.unsigned()
    elif kind == 1:
        reader.byte()
        _limits(reader)
    elif kind == 2:
        _limits(reader)
    elif kind == 3:
        reader.take(2)
    elif kind == 4:
        reader.byte()
        reader.unsigned()
    else:
        raise FormatError(f"an import of the unknown kind {kind}")
    return Import(module, name, KINDS[kind], reader.data[start : reader.position])


def _segment(reader: Reader) -> Segment:
    flag = reader.unsigned()
    if flag != 0 or reader.byte() != 0x41:
        raise FormatError("a data segment has no fixed address")
    address = reader.signed() & 0xFFFFFFFF
    if reader.byte() != 0x0B:
        raise FormatError("a data segment's address is no constant")
    return Segment(address, reader.take(reader.unsigned()))
