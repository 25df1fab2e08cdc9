"""Which model a request is about, from its path or from the first bytes of its gRPC message. Nothing here raises.

The name is what a client wrote: it is bounded, must look like a model's name, and is unknown (empty) otherwise.
"""

from __future__ import annotations

from mcprun_filter.routing import split_query

UNKNOWN = b""
NEED_MORE = None
"""The answer of `from_message` while the name may be in bytes to come."""

MAX_NAME = 128
MAX_SCANNED = 16 * 1024
"""Bytes of a message that are looked at. Clients write fields in order, and the name is the first."""
MAX_FIELDS = 64

SERVICE = b"/inference.GRPCInferenceService/"
METHODS = frozenset({b"ModelInfer", b"ModelStreamInfer", b"ModelReady", b"ModelMetadata", b"ModelConfig", b"ModelStatistics"})
"""The methods whose request carries the model's name in field 1."""

_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_HEX = b"0123456789abcdefABCDEF"


def is_model_name(name: bytes) -> bool:
    """Whether a model can have that name: letters, digits, `.`, `_` and `-`, the first a letter or digit, 128 at most."""
    return 0 < len(name) <= MAX_NAME and name[0] in _LETTERS and not name.translate(None, _LETTERS + b"._-")


def from_path(path: bytes) -> bytes:
    """The name in `/v2/models/NAME` and all below it; unknown for other paths."""
    if not path.startswith(b"/v2/models/"):
        return UNKNOWN
    name = split_query(path)[0][11:].split(b"/", 1)[0]
    if b"%" in name:
        name = _unescaped(name)
    return name if is_model_name(name) else UNKNOWN


def in_message(path: bytes) -> bool:
    """Whether that is a gRPC method whose message names the model."""
    return path.startswith(SERVICE) and path[len(SERVICE) :] in METHODS


def from_message(data: bytes) -> bytes | None:
    """The name in the beginning of a gRPC request body: a frame's header and field 1 of the message.

    `NEED_MORE` when it may be in bytes to come; unknown when the message is compressed, malformed, or names none.
    """
    if len(data) < 5:
        return NEED_MORE if not data or data[0] == 0 else UNKNOWN
    if data[0] != 0:
        return UNKNOWN
    end = 5 + int.from_bytes(data[1:5], "big")
    at = 5
    for _ in range(MAX_FIELDS):
        if at >= end or at > MAX_SCANNED:
            return UNKNOWN
        key, at = _varint(data, at, end)
        if at <= 0:
            return NEED_MORE if at == 0 else UNKNOWN
        kind = key & 7
        size = 0
        if kind in (0, 2):
            size, at = _varint(data, at, end)
            if at <= 0:
                return NEED_MORE if at == 0 else UNKNOWN
            if kind == 0:
                size = 0
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            return UNKNOWN
        if size > end - at:
            return UNKNOWN
        if key == 0x0A:
            if not 0 < size <= MAX_NAME:
                return UNKNOWN
            if at + size > len(data):
                return NEED_MORE
            name = data[at : at + size]
            return name if is_model_name(name) else UNKNOWN
        at += size
    return UNKNOWN


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number and where the next byte is; 0 in its place when bytes are missing, -1 when it is malformed."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            return 0, -1
        if at >= len(data):
            return 0, 0
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    return 0, -1


def _unescaped(name: bytes) -> bytes:
    first, *others = name.split(b"%")
    parts = [first]
    for other in others:
        digits = other[:2]
        if len(digits) != 2 or digits.translate(None, _HEX):
            return UNKNOWN
        parts += (bytes((int(digits, 16),)), other[2:])
    return b"".join(parts)
