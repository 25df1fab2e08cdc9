"""Reading a JSON object field by field, with errors that name the path, what was expected and what came."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

MAX_DEPTH = 32
MAX_SIZE = 4 * 1024 * 1024
_TOKEN_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~")


def fail(path: str, expected: str, came: object) -> NoReturn:
    """Raises the ValueError that says it."""
    shown = _printable(came)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    where = _printable(path or "policy")[1:-1]
    raise ValueError(f"{where if len(where) <= 200 else where[:197] + '...'}: expected {expected}, got {shown}")


def _printable(value: object) -> str:
    """As JSON, which no name that somebody wrote can end a line of a log with."""
    return json.dumps(value, default=repr).replace("\x7f", "\\u007f")


def load(raw: bytes) -> dict[str, object]:
    """The JSON object in those bytes. Nothing at all is an empty one.

    Raises:
        ValueError: no UTF-8, no JSON, no object, too large, or nested too deeply for the interpreter inside WebAssembly.
    """
    if len(raw) > MAX_SIZE:
        fail("", f"at most {MAX_SIZE} bytes", len(raw))
    if not raw.strip():
        return {}
    if _depth(raw) > MAX_DEPTH:
        fail("", f"at most {MAX_DEPTH} levels of nesting", "more")
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_integer)
    except UnicodeDecodeError as error:
        raise ValueError(f"policy: expected UTF-8, got a wrong byte at {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"policy: expected JSON, got {error.msg} at line {error.lineno}, column {error.colno}") from None
    if not isinstance(value, dict):
        fail("", "an object", value)
    return value


def _depth(raw: bytes) -> int:
    """How deeply brackets nest, outside of strings."""
    deepest = depth = 0
    quoted = escaped = False
    for byte in raw:
        if quoted:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                quoted = False
        elif byte == 0x22:
            quoted = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"policy: expected each key once, got {_printable(key)} twice in one object")
        values[key] = value
    return values


def _integer(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError(f"policy: expected numbers of at most 20 digits, got {len(digits)}")
    return int(digits)


def _no_constant(name: str) -> object:
    raise ValueError(f"policy: expected finite numbers, got {name}")


class Fields:
    """One JSON object and where it is. What was read is known, so that `done` can refuse the rest."""

    __slots__ = ("_known", "path", "values")

    def __init__(self, values: dict[str, object], path: str) -> None:
        self.values = values
        self.path = path
        self._known: set[str] = set()

    def below(self, key: str) -> str:
        """The path of that key."""
        return f"{self.path}.{key}" if self.path else key

    def has(self, key: str) -> bool:
        """Whether the key is there with a value; null is none."""
        self._known.add(key)
        return self.values.get(key) is not None

    def names(self) -> list[str]:
        """All keys, of objects whose keys are names."""
        return list(self.values)

    def at_most(self, count: int, what: str) -> None:
        """Refuses more than so many keys."""
        if len(self.values) > count:
            fail(self.path, f"at most {count} {what}", len(self.values))

    def done(self) -> None:
        """Refuses keys that nothing has read."""
        for key in self.values:
            if key not in self._known:
                fail(self.below(key), f"no such field (there are {', '.join(sorted(self._known))})", self.values[key])

    def _take(self, key: str) -> object:
        self._known.add(key)
        return self.values.get(key)

    def integer(self, key: str, default: int, least: int, most: int) -> int:
        """A whole number between the bounds."""
        value = self._take(key)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            fail(self.below(key), f"a whole number from {least} to {most}", value)
        return value

    def number(self, key: str, default: float | None, least: float, most: float) -> float:
        """A number between the bounds; without a default it must be there."""
        value = self._take(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
            fail(self.below(key), f"a number from {least:g} to {most:g}", value)
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._take(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            fail(self.below(key), "true or false", value)
        return value

    def text(self, key: str, default: str | None, least: int, most: int) -> str:
        """Text of so many characters, none of them a control character or half a surrogate pair."""
        value = self._take(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not least <= len(value) <= most or not is_plain(value):
            fail(self.below(key), f"text of {least} to {most} plain characters", value)
        return value

    def one_of(self, key: str, default: str, choices: tuple[str, ...]) -> str:
        """One of those words."""
        value = self._take(key)
        if value is None:
            return default
        if value not in choices:
            fail(self.below(key), "one of " + ", ".join(choices), value)
        return str(value)

    def header(self, key: str, default: bytes | None) -> bytes:
        """A header's name, in lower case."""
        value = self._take(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not 0 < len(value) <= 128 or not _TOKEN_CHARACTERS.issuperset(value):
            fail(self.below(key), "a header's name", value)
        return value.lower().encode()

    def object(self, key: str) -> Fields:
        """An object; an empty one when it is not there."""
        value = self._take(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            fail(self.below(key), "an object", value)
        return Fields(value, self.below(key))

    def objects(self, key: str, most: int) -> list[Fields]:
        """A list of objects; an empty one when it is not there."""
        value = self._take(key)
        if value is None:
            return []
        if not isinstance(value, list):
            fail(self.below(key), "a list", value)
        if len(value) > most:
            fail(self.below(key), f"at most {most} entries", len(value))
        for index, one in enumerate(value):
            if not isinstance(one, dict):
                fail(f"{self.below(key)}[{index}]", "an object", one)
        return [Fields(one, f"{self.below(key)}[{index}]") for index, one in enumerate(value)]

    def texts(self, key: str, most: int) -> list[str]:
        """A list of texts; an empty one when it is not there."""
        value = self._take(key)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > most:
            fail(self.below(key), f"a list of at most {most} texts", value)
        for index, one in enumerate(value):
            if not isinstance(one, str) or not 0 < len(one) <= 255 or not is_plain(one):
                fail(f"{self.below(key)}[{index}]", "text of 1 to 255 plain characters", one)
        return list(value)


def is_plain(text: str) -> bool:
    """Whether there are no control characters and no halves of surrogate pairs."""
    return all(character >= " " and character != "\x7f" and not "\ud800" <= character <= "\udfff" for character in text)
