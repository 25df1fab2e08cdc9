"""What the host tells about the stream, the connection, the route and itself, by paths such as ("request", "path").

Envoy lists them as attributes. It encodes integers, durations and doubles in 8 bytes, little-endian; booleans in one.
"""

from struct import unpack

from proxy_wasm.binding import bound
from proxy_wasm.errors import check

_KNOWN_PATHS = 256
_paths: dict[tuple[str, ...], bytes] = {}


def _encode(path: tuple[str, ...]) -> bytes:
    encoded = "\0".join(path).encode()
    if len(_paths) < _KNOWN_PATHS:
        _paths[path] = encoded
    return encoded


def get(*path: str) -> bytes | None:
    """The property as the host encodes it; None when there is none, or not yet."""
    return bound.host.get_property(_paths.get(path) or _encode(path))


def text(*path: str) -> str | None:
    """A property that is a string: UTF-8, with U+FFFD for each wrong byte."""
    value = get(*path)
    return None if value is None else value.decode("utf-8", "replace")


def integer(*path: str) -> int | None:
    """A property that is a number, e.g. ("response", "code"), or a time or duration: those in nanoseconds.

    None also when it is not encoded as one.
    """
    value = bound.host.get_property(_paths.get(path) or _encode(path))
    return int.from_bytes(value, "little", signed=True) if value is not None and len(value) == 8 else None


def unsigned(*path: str) -> int | None:
    """A property that is an unsigned number past 2**63."""
    value = get(*path)
    return int.from_bytes(value, "little") if value is not None and len(value) == 8 else None


def double(*path: str) -> float | None:
    """A property that is a floating-point number."""
    value = get(*path)
    return float(unpack("<d", value)[0]) if value is not None and len(value) == 8 else None


def boolean(*path: str) -> bool | None:
    """A property that is true or false, e.g. ("connection", "mtls")."""
    value = get(*path)
    return value != b"\0" if value is not None and len(value) == 1 else None


def put(*path: str, value: bytes) -> None:
    """Keeps bytes under that path for as long as the stream lives; filters after this one can read them, and so can access logs.

    Envoy keeps them in its filter state, with `wasm.` before the path.
    """
    check("set_property", bound.host.set_property(_paths.get(path) or _encode(path), value))
