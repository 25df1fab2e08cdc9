"""Headers, trailers and metadata as mappings that are safe for any bytes.

Names are case-insensitive and may be given as str or bytes. Values arrive as `bytes`, since a client may send any: what is wanted as
text is decoded by `text` as UTF-8, with U+FFFD for what is none. UTF-8 and not Latin-1, because str is written as UTF-8 and should read
back as the same. Reading never raises for what a client sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from proxy_wasm import pairs
from proxy_wasm.abi import MapType
from proxy_wasm.binding import bound
from proxy_wasm.errors import check

_KNOWN_NAMES = 512
_names: dict[str | bytes, bytes] = {}
"""Names as the host wants them; bounded, since a filter may look for names that a client chose."""


def encode_value(value: str | bytes) -> bytes:
    """Raises `ValueError` for what no header can hold: NUL, CR, LF, or a str that UTF-8 cannot express."""
    if isinstance(value, str):
        try:
            value = value.encode()
        except UnicodeEncodeError:
            raise ValueError("a header value holds surrogates, which UTF-8 cannot express; pass bytes instead") from None
    if b"\n" in value or b"\r" in value or b"\0" in value:
        raise ValueError(f"a header value holds NUL, CR or LF: {value[:100]!r}")
    return value


def encode_name(name: str | bytes) -> bytes:
    """The name in lower case. Raises `ValueError` for what no header can be called."""
    key = _names.get(name) or _look_up(name)
    if not key:
        raise ValueError(f"no header can have this name: {name[:100]!r}")
    return key


def encode_pairs(headers: Iterable[tuple[str | bytes, str | bytes]]) -> bytes:
    """An encoded map. Raises `ValueError` as `encode_name` and `encode_value` do."""
    return pairs.encode([(encode_name(name), encode_value(value)) for name, value in headers])


def _look_up(name: str | bytes) -> bytes:
    """The name as the host has it; empty when no header can have it."""
    try:
        key = name.lower().encode() if isinstance(name, str) else name.lower()
    except UnicodeEncodeError:
        return b""
    if b"\n" in key or b"\r" in key or b"\0" in key:
        return b""
    if len(_names) < _KNOWN_NAMES:
        _names[name] = key
    return key


class Headers:
    """What headers that can be read have in common."""

    __slots__ = ()

    def items(self) -> list[tuple[bytes, bytes]]:
        """All pairs in their order, repeated names included; names in lower case."""
        raise NotImplementedError

    def get(self, name: str | bytes, default: bytes | None = None) -> bytes | None:
        """The first value of that name."""
        key = _names.get(name) or _look_up(name)
        for other, value in self.items():
            if other == key:
                return value
        return default

    def get_all(self, name: str | bytes) -> list[bytes]:
        """Every value of that name, in their order."""
        key = _names.get(name) or _look_up(name)
        return [value for other, value in self.items() if other == key]

    def text(self, name: str | bytes, default: str | None = None) -> str | None:
        """The first value of that name as text: UTF-8, with U+FFFD for each wrong byte."""
        value = self.get(name)
        return default if value is None else value.decode("utf-8", "replace")

    def __getitem__(self, name: str | bytes) -> bytes:
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str | bytes) and self.get(name) is not None

    def __iter__(self) -> Iterator[bytes]:
        """Each name once."""
        return iter(dict(self.items()))

    def __len__(self) -> int:
        """How many names there are."""
        return len(dict(self.items()))


class HeaderList(Headers):
    """Headers that were received and stay as they were."""

    __slots__ = ("_pairs",)

    def __init__(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._pairs = [(name.lower(), value) for name, value in headers]

    def items(self) -> list[tuple[bytes, bytes]]:
        """All pairs in their order, repeated names included; names in lower case."""
        return list(self._pairs)

    def __repr__(self) -> str:
        return f"HeaderList({self._pairs!r})"


class HeaderMap(Headers):
    """Headers of the stream that a callback is about, as the host has them now.

    It holds nothing itself: every access is a hostcall, and applies to the stream whose callback runs. Where the host has no such
    headers (see each callback), reading finds nothing and writing raises `HostcallFailed`.
    """

    __slots__ = ("_type",)

    def __init__(self, map_type: int) -> None:
        self._type = int(map_type)

    def get(self, name: str | bytes, default: bytes | None = None) -> bytes | None:
        """The first value of that name."""
        value = bound.host.get_header(self._type, _names.get(name) or _look_up(name))
        return default if value is None else value

    def items(self) -> list[tuple[bytes, bytes]]:
        """All pairs in their order, repeated names included; names in lower case."""
        encoded = bound.host.get_header_pairs(self._type)
        return [] if encoded is None else pairs.decode(encoded)

    def snapshot(self) -> HeaderList:
        """A copy that outlives the callback."""
        return HeaderList(self.items())

    @property
    def size(self) -> int:
        """The size of all names and values together, in bytes."""
        return bound.host.get_header_map_size(self._type) or 0

    def __setitem__(self, name: str | bytes, value: str | bytes) -> None:
        """Puts the value in the place of every one of that name."""
        check("replace_header", bound.host.replace_header(self._type, encode_name(name), encode_value(value)))

    def add(self, name: str | bytes, value: str | bytes) -> None:
        """Adds a value beside those of that name."""
        check("add_header", bound.host.add_header(self._type, encode_name(name), encode_value(value)))

    def remove(self, name: str | bytes) -> None:
        """Removes every value of that name; nothing happens when there is none."""
        check("remove_header", bound.host.remove_header(self._type, encode_name(name)))

    def __delitem__(self, name: str | bytes) -> None:
        """Removes every value of that name. Raises `KeyError` when there is none."""
        if self.get(name) is None:
            raise KeyError(name)
        self.remove(name)

    def replace_all(self, headers: Iterable[tuple[str | bytes, str | bytes]]) -> None:
        """Puts these in the place of all that are there, pseudo-headers such as `:path` included."""
        check("set_header_pairs", bound.host.set_header_pairs(self._type, encode_pairs(headers)))

    def __repr__(self) -> str:
        return f"HeaderMap({MapType(self._type).name})"


REQUEST_HEADERS = HeaderMap(MapType.REQUEST_HEADERS)
REQUEST_TRAILERS = HeaderMap(MapType.REQUEST_TRAILERS)
RESPONSE_HEADERS = HeaderMap(MapType.RESPONSE_HEADERS)
RESPONSE_TRAILERS = HeaderMap(MapType.RESPONSE_TRAILERS)
