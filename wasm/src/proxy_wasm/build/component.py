"""Components of WebAssembly: the core modules within, and how they are tied together.

Reads as much of the component model's binary format as what componentize-py makes with its stand-ins for WASI. Types are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from proxy_wasm.build.errors import FormatError
from proxy_wasm.build.leb128 import Reader

MAGIC: Final = b"\0asm\x0d\0\1\0"

_CORE_SORTS: Final = {0: "function", 1: "table", 2: "memory", 3: "global", 4: "tag", 0x10: "type", 0x11: "module", 0x12: "instance"}
_SORT: Final = "the sort"
_SORTS: Final = {1: "function", 2: "value", 3: "type", 4: "component", 5: "instance"}


@dataclass(frozen=True, slots=True)
class Sort:
    """Which of the component's lists a number counts in."""

    name: str
    core: bool


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a lift or a lower: numbers of core functions and memories."""

    memory: int | None = None
    realloc: int | None = None
    post_return: int | None = None


@dataclass(frozen=True, slots=True)
class Alias:
    """The export `name` of an instance."""

    instance: int
    name: str


@dataclass(frozen=True, slots=True)
class Lift:
    """A component's function made of a core function."""

    core_function: int
    options: Options


@dataclass(frozen=True, slots=True)
class Lower:
    """A core function made of a component's function."""

    function: int
    options: Options


@dataclass(frozen=True, slots=True)
class Builtin:
    """A core function that the component model itself gives."""

    operation: int
    argument: int


@dataclass(frozen=True, slots=True)
class Imported:
    """Something that the component needs."""

    name: str


@dataclass(frozen=True, slots=True)
class Nested:
    """Something that is counted but never looked into."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A module or component, with the instances that its imports come from."""

    of: int
    arguments: dict[str, int]


@dataclass(frozen=True, slots=True)
class Bundle:
    """An instance that is only a list of names for things from elsewhere."""

    items: dict[str, tuple[Sort, int]]


@dataclass(frozen=True, slots=True)
class Provided:
    """An export of an instance that is made of a core module."""

    instance: int
    name: str


Item = Alias | Lift | Lower | Builtin | Imported | Nested | Instance | Bundle | bytes


class Component:
    """A component. Raises FormatError for what it does not know.

    `exports` are the component's functions, by name.
    """

    def __init__(self, data: bytes) -> None:
        if data[:8] != MAGIC:
            raise FormatError("not a component of WebAssembly")
        self._core: dict[str, list[Item]] = {name: [] for name in _CORE_SORTS.values()}
        self._items: dict[str, list[Item]] = {name: [] for name in _SORTS.values()}
        self._names: dict[tuple[Sort, int], str] = {}
        self.exports: dict[str, int] = {}
        reader = Reader(data, 8)
        kinds = {2: self._core_instance, 5: self._instance, 6: self._alias, 8: self._canonical, 10: self._import, 11: self._export}
        while not reader.exhausted:
            number = reader.byte()
            part = reader.part(reader.unsigned())
            if number == 0:
                self._custom(part)
            elif number == 1:
                self._core["module"].append(part.data[part.position : part.end])
            elif number == 4:
                self._items["component"].append(Nested())
            elif number in (3, 7):
                continue  # types
            elif number in kinds:
                for _ in range(part.unsigned()):
                    kinds[number](part)
                if not part.exhausted:
                    raise FormatError(f"section {number} of the component is not understood")
            else:
                raise FormatError(f"the component has a section {number}, which is not known here")

    @property
    def instances(self) -> dict[int, Instance]:
        """The instances that are made of core modules, in order."""
        return {number: item for number, item in enumerate(self._core["instance"]) if isinstance(item, Instance)}

    def module(self, number: int) -> bytes:
        """A core module's bytes."""
        item = _at(self._core["module"], number)
        if not isinstance(item, bytes):
            raise FormatError(f"core module {number} is not in the component")
        return item

    def module_name(self, number: int) -> str:
        """A core module's name."""
        return self._names.get((Sort("module", True), number), "")

    def lift(self, export: str) -> Lift:
        """How an exported function is made."""
        if export not in self.exports:
            raise FormatError(f"the component has no function {export}")
        item = _at(self._items["function"], self.exports[export])
        if not isinstance(item, Lift):
            raise FormatError(f"{export} is not made of a core function")
        return item

    def any_realloc(self) -> int:
        """The number of a core function that allocates."""
        for item in self._items["function"]:
            if isinstance(item, Lift) and item.options.realloc is not None:
                return item.options.realloc
        raise FormatError("the component has no function that allocates")

    def resolve(self, sort: str, number: int) -> Provided | Lower | Builtin:
        """Where a core item comes from in the end."""
        item = _at(self._core[sort], number)
        if isinstance(item, Alias):
            return self.resolve_export(item.instance, item.name)
        if isinstance(item, Lower | Builtin):
            return item
        raise FormatError(f"core {sort} {number} comes from nowhere")

    def resolve_export(self, instance: int, name: str) -> Provided | Lower | Builtin:
        """Where an export of a core instance comes from in the end."""
        item = _at(self._core["instance"], instance)
        if isinstance(item, Bundle):
            if name not in item.items:
                raise FormatError(f"core instance {instance} has no {name}")
            sort, number = item.items[name]
            return self.resolve(sort.name, number)
        return Provided(instance, name)

    def import_of(self, lower: Lower) -> tuple[str, str]:
        """Interface and name of the imported function that is lowered."""
        item = _at(self._items["function"], lower.function)
        if isinstance(item, Alias):
            instance = _at(self._items["instance"], item.instance)
            if isinstance(instance, Imported):
                return instance.name, item.name
        raise FormatError("a function of the component is lowered that is not imported")

    def _add(self, sort: Sort, item: Item) -> None:
        (self._core if sort.core else self._items)[sort.name].append(item)

    def _custom(self, reader: Reader) -> None:
        if reader.text() != "component-name":
            return
        while not reader.exhausted:
            number = reader.byte()
            part = reader.part(reader.unsigned())
            if number == 1:
                sort = _sort(part)
                for _ in range(part.unsigned()):
                    index = part.unsigned()
                    self._names[sort, index] = part.text()

    def _core_instance(self, reader: Reader) -> None:
        item: Item
        if reader.byte() == 0:
            module = reader.unsigned()
            arguments = {}
            for _ in range(reader.unsigned()):
                name = reader.text()
                if reader.byte() != 0x12:
                    raise FormatError("an argument of a core instance is no instance")
                arguments[name] = reader.unsigned()
            item = Instance(module, arguments)
        else:
            items = {}
            for _ in range(reader.unsigned()):
                name = reader.text()
                sort, number = Sort(reader.one_of(_CORE_SORTS, _SORT), True), reader.unsigned()
                if sort.name != "type":
                    _at(self._core[sort.name], number)
                items[name] = sort, number
            item = Bundle(items)
        self._core["instance"].append(item)

    def _instance(self, reader: Reader) -> None:
        if reader.byte() == 0:
            component = reader.unsigned()
            for _ in range(reader.unsigned()):
                reader.text()
                _sort(reader)
                reader.unsigned()
            self._items["instance"].append(Instance(component, {}))
        else:
            items = {}
            for _ in range(reader.unsigned()):
                name = _extern_name(reader)
                items[name] = (_sort(reader), reader.unsigned())
            self._items["instance"].append(Bundle(items))

    def _alias(self, reader: Reader) -> None:
        sort = _sort(reader)
        kind = reader.byte()
        if kind in (0, 1):
            instance = reader.unsigned()
            # What is named is there already: else something could be made of itself.
            _at((self._core if kind else self._items)["instance"], instance)
            self._add(sort, Alias(instance, reader.text()))
        else:
            reader.unsigned()
            reader.unsigned()
            self._add(sort, Nested())

    def _canonical(self, reader: Reader) -> None:
        kind = reader.byte()
        if kind == 0:
            reader.byte()
            function = reader.unsigned()
            options = _options(reader)
            reader.unsigned()
            self._items["function"].append(Lift(function, options))
        elif kind == 1:
            reader.byte()
            function = reader.unsigned()
            self._core["function"].append(Lower(function, _options(reader)))
        elif kind in (2, 3, 4, 7):
            self._core["function"].append(Builtin(kind, reader.unsigned()))
        else:
            raise FormatError(f"the component uses the built-in operation {kind:#x}, which is not known here")

    def _import(self, reader: Reader) -> None:
        name = _extern_name(reader)
        self._add(_extern_description(reader), Imported(name))

    def _export(self, reader: Reader) -> None:
        name = _extern_name(reader)
        sort = _sort(reader)
        number = reader.unsigned()
        if reader.byte():
            _extern_description(reader)
        if sort == Sort("function", False):
            self.exports[name] = number
        self._add(sort, _at(self._items[sort.name], number) if not sort.core and self._items[sort.name] else Nested())


def _at(items: list[Item], number: int) -> Item:
    if number >= len(items):
        raise FormatError(f"the component names number {number} of {len(items)}")
    return items[number]


def _sort(reader: Reader) -> Sort:
    # The core sorts are told by a second byte.
    name = reader.one_of({0: "", **_SORTS}, _SORT)
    return Sort(name, False) if name else Sort(reader.one_of(_CORE_SORTS, _SORT), True)


def _extern_name(reader: Reader) -> str:
    kind = reader.byte()
    name = reader.text()
    if kind == 2:
        reader.text()
    return name


def _extern_description(reader: Reader) -> Sort:
    kind = reader.byte()
    if kind == 0:
        reader.byte()
        reader.unsigned()
        return Sort("module", True)
    if kind == 3:
        if reader.byte() == 0:
            reader.unsigned()
        return Sort("type", False)
    if kind in (1, 4, 5):
        reader.unsigned()
        return Sort(_SORTS[kind], False)
    raise FormatError(f"something of the unknown kind {kind} is imported or exported")


def _options(reader: Reader) -> Options:
    found: dict[int, int] = {}
    for _ in range(reader.unsigned()):
        kind = reader.byte()
        if kind in (3, 4, 5, 7):
            found[kind] = reader.unsigned()
    return Options(memory=found.get(3), realloc=found.get(4), post_return=found.get(5))
