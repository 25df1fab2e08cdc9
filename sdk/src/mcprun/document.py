"""YAML files that people write: plain values, the position of each, and mistakes told by file, line, column and field."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

MAX_BYTES = 4 * 1024 * 1024
"""A larger file is refused before it is parsed."""
MAX_VALUES = 200_000
"""The most values in one file, aliases written out."""
MAX_DEPTH = 64

Location = tuple[str | int, ...]
"""The way to a value: keys and indices from the top."""

_MERGE = "tag:yaml.org,2002:merge"
_PLAIN = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float")}
# Dates and the like are text here.
_TEXT = {f"tag:yaml.org,2002:{name}" for name in ("str", "timestamp")}


@dataclass(frozen=True, slots=True)
class Position:
    """Where something stands in a file, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a file."""

    file: Path
    line: int
    """Counted from 1."""
    column: int
    """Counted from 1."""
    field: str
    """Such as `preprocess[1].resize.size`; empty for the document as a whole."""
    expected: str
    got: str
    hint: str = ""
    """What probably was meant; empty when nothing is near."""

    @property
    def message(self) -> str:
        """What was expected, what came, and what may have been meant."""
        return f"expected {self.expected}, got {self.got}{f' ({self.hint})' if self.hint else ''}"

    def __str__(self) -> str:
        field = f"{self.field}: " if self.field else ""
        return f"{self.file}:{self.line}:{self.column}: {field}{self.message}"


class ConfigError(Exception):
    """A file has mistakes; `problems` holds all of them in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(sorted(problems, key=lambda problem: (problem.line, problem.column)))
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML file as plain values, with the position of each."""

    file: Path
    values: dict[str, Any]
    positions: dict[Location, Position]
    """Of the keys of mappings and the items of lists."""
    problems: tuple[Problem, ...] = ()
    """Mistakes that do not stop the reading, such as a key that is there twice."""
    origins: dict[Location, Location] = field(default_factory=dict)
    """Where in the file a value stands that was moved when the document was normalised, by where it is now."""

    def written(self, location: Location) -> Location:
        """The location in the file of a value in the normalised document."""
        for length in range(len(location), 0, -1):
            origin = self.origins.get(location[:length])
            if origin is not None:
                return origin + location[length:]
        return location

    def problem(self, location: Location, expected: str, got: str, *, hint: str = "") -> Problem:
        """A mistake at a location; the position is that of the nearest part that exists."""
        known = location
        while known and known not in self.positions:
            known = known[:-1]
        position = self.positions.get(known, Position(1, 1))
        return Problem(self.file, position.line, position.column, field_name(location), expected, got, hint)


def read(file: Path, *, may_be_empty: bool = False) -> Document:
    """Reads a file that must hold a mapping, or nothing but comments when it `may_be_empty`. Raises ConfigError when nothing can
    be made of it.
    """
    text = _text(file)
    loader = YAML(typ="safe", pure=True)
    try:
        root = loader.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise ConfigError([Problem(file, line, column, "", "YAML", str(error.problem or error.context))]) from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise ConfigError([Problem(file, 1, 1, "", "YAML", " ".join(str(error).split()) or "nesting without end")]) from error
    if root is None:
        if may_be_empty:
            return Document(file, {}, {})
        raise ConfigError([Problem(file, 1, 1, "", "a mapping of fields", "an empty file")])
    if not isinstance(root, MappingNode):
        got = "a list" if isinstance(root, SequenceNode) else repr(root.value)
        raise ConfigError([Problem(file, root.start_mark.line + 1, root.start_mark.column + 1, "", "a mapping of fields", got)])
    reader = _Reader(file, loader.constructor)
    values = reader.mapping(root, ())
    return Document(file, values, reader.positions, tuple(reader.problems))


def field_name(location: Location) -> str:
    """A location as people write it, such as `versions.1.labels[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")


def shown(value: Any) -> str:
    """A value as it reads in YAML, cut short when it is long."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case dict():
            return "a mapping" if value else "an empty mapping"
        case list() | tuple():
            text = "[" + ", ".join(shown(item) for item in value) + "]"
            return text if len(text) <= 60 else f"a list of {len(value)}"
        case str():
            return repr(value) if len(value) <= 60 else f"{value[:57]!r}..."
    return str(value)


def _text(file: Path) -> str:
    def refuse(expected: str, got: str) -> ConfigError:
        return ConfigError([Problem(file, 1, 1, "", expected, got)])

    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise refuse("a file that can be read", (error.strerror or type(error).__name__).lower()) from error
    if len(content) > MAX_BYTES:
        raise refuse(f"at most {MAX_BYTES} bytes", "more than that")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        problem = Problem(file, line, column, "", "UTF-8 text", f"the byte 0x{content[error.start]:02x}")
        raise ConfigError([problem]) from error


class _Reader:
    """Turns nodes into values and keeps their positions. Every mistake is kept, none stops the reading."""

    def __init__(self, file: Path, constructor: Any) -> None:
        self.positions: dict[Location, Position] = {}
        self.problems: list[Problem] = []
        self._file = file
        self._constructor = constructor
        self._count = 0

    def mapping(self, node: MappingNode, at: Location) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node, inherited in self._entries(node, at, 0):
            key = str(key_node.value)
            location = (*at, key)
            if key in values:
                if not inherited:
                    first = self.positions[location].line
                    self._wrong(key_node, location, "each field once", f"{key!r} again", f"first on line {first}")
                continue
            self.positions[location] = _position(key_node)
            values[key] = self.value(value_node, location)
        return values

    def value(self, node: Node, at: Location) -> Any:
        self._count += 1
        if self._count > MAX_VALUES or len(at) > MAX_DEPTH:
            # Told once: the values that follow are past the same bound.
            if not any(problem.expected.startswith("at most") for problem in self.problems):
                self._wrong(node, at[:MAX_DEPTH], f"at most {MAX_VALUES} values, {MAX_DEPTH} deep", "more than that")
            return None
        if isinstance(node, MappingNode):
            return self.mapping(node, at)
        if isinstance(node, SequenceNode):
            items = []
            for index, item in enumerate(node.value):
                self.positions[*at, index] = _position(item)
                items.append(self.value(item, (*at, index)))
            return items
        return self._scalar(node, at)

    def _scalar(self, node: Node, at: Location) -> Any:
        if node.tag in _PLAIN:
            try:
                return self._constructor.construct_object(node)
            except (ValueError, YAMLError):
                self._wrong(node, at, "a number", repr(node.value))
                return None
        if node.tag not in _TEXT:
            self._wrong(node, at, "a plain value", f"the tag {node.tag}")
        return node.value

    def _entries(self, node: MappingNode, at: Location, depth: int) -> Iterator[tuple[ScalarNode, Node, bool]]:
        """Keys and values, then those that come in by `<<`."""
        merged: list[Node] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                merged += value.value if isinstance(value, SequenceNode) else [value]
            elif isinstance(key, ScalarNode):
                yield key, value, False
            else:
                self._wrong(key, at, "a name as key", "a mapping" if isinstance(key, MappingNode) else "a list")
        for source in merged:
            if isinstance(source, MappingNode) and depth < MAX_DEPTH:
                for key, value, _ in self._entries(source, at, depth + 1):
                    yield key, value, True
            else:
                self._wrong(source, at, "a mapping to merge", "something else")

    def _wrong(self, node: Node, at: Location, expected: str, got: str, hint: str = "") -> None:
        position = _position(node)
        self.problems.append(Problem(self._file, position.line, position.column, field_name(at), expected, got, hint))


def _position(node: Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


def merge(problems: Sequence[Problem], more: Sequence[Problem]) -> list[Problem]:
    """`problems`, and those of `more` that are about something else."""
    known = {(problem.line, problem.column, problem.field) for problem in problems}
    return [*problems, *(problem for problem in more if (problem.line, problem.column, problem.field) not in known)]
