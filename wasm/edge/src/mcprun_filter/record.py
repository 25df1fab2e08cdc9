"""The bytes of a fleet in shared data.

    header   magic "fB", version, number of nodes, base generation, seen, CRC-32 of all this and of all that follows
    node     lengths of name, leases and window; state, reason; counters; times; then the name, leases and window themselves

All little-endian and unaligned. What cannot be read decodes as a fresh fleet: the breakers start anew, nothing fails.
"""

from __future__ import annotations

import struct
import zlib

from mcprun_filter.breaker import HALF_OPEN, REASONS, Breaker, Thresholds
from mcprun_filter.fleet import MAX_NODE_NAME, MAX_NODES, Fleet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_MAGIC = 0x4266
_VERSION = 2
_HEADER = struct.Struct("<HBBIQ")
_CHECKSUM = struct.Struct("<I")
_START = _HEADER.size + _CHECKSUM.size
_NODE = struct.Struct("<BBBBBBHHIIIIIQQ")
_LEASES = [struct.Struct(f"<{2 * count}Q") for count in range(17)]
_WINDOWS = [struct.Struct(f"<{3 * count}I") for count in range(65)]
MAX_LEASES = len(_LEASES) - 1
MAX_SECONDS = len(_WINDOWS) - 1


def encode(fleet: Fleet) -> bytes:
    """The fleet's record; thresholds and configured nodes are not part of it."""
    parts = [b""]
    for breaker in fleet.breakers.values():
        leases = breaker.leases[-2 * MAX_LEASES :]
        window = breaker.window[-3 * MAX_SECONDS :]
        parts.append(
            _NODE.pack(
                len(breaker.name),
                len(leases) // 2,
                len(window) // 3,
                breaker.state,
                breaker.reason,
                breaker.count,
                breaker.successes,
                breaker.lost,
                breaker.consecutive,
                breaker.generation,
                breaker.length,
                breaker.first,
                breaker.second,
                breaker.since,
                breaker.seen,
            )
        )
        parts.append(breaker.name)
        if leases:
            parts.append(_LEASES[len(leases) // 2].pack(*leases))
        if window:
            parts.append(_WINDOWS[len(window) // 3].pack(*window))
    body = b"".join(parts)
    header = _HEADER.pack(_MAGIC, _VERSION, len(fleet.breakers), fleet.base_generation, fleet.seen)
    return header + _CHECKSUM.pack(zlib.crc32(body, zlib.crc32(header))) + body


INITIAL = encode(Fleet(Thresholds()))
"""A fleet of which nothing is known yet."""


def decode(raw: bytes, thresholds: Thresholds, nodes: Sequence[bytes] = ()) -> Fleet:
    """The fleet of that record, as today's thresholds and nodes see it. Never raises."""
    fleet = Fleet(thresholds, nodes)
    try:
        magic, version, count, base, seen = _HEADER.unpack_from(raw)
        if magic != _MAGIC or version != _VERSION or count > MAX_NODES:
            return fleet
        if (zlib.crc32(raw[_START:], zlib.crc32(raw[: _HEADER.size])),) != _CHECKSUM.unpack_from(raw, _HEADER.size):
            return fleet
        breakers: dict[bytes, Breaker] = {}
        at = _START
        for _ in range(count):
            breaker, at = _decode_node(raw, at)
            breakers[breaker.name] = breaker
    except (struct.error, ValueError, IndexError):
        return fleet
    if at != len(raw) or len(breakers) != count:
        return fleet
    fleet.base_generation = base
    fleet.seen = seen
    fleet.breakers = breakers
    return fleet


def _decode_node(raw: bytes, at: int) -> tuple[Breaker, int]:
    breaker = Breaker.__new__(Breaker)
    (
        name_size,
        leases,
        window,
        breaker.state,
        breaker.reason,
        breaker.count,
        breaker.successes,
        breaker.lost,
        breaker.consecutive,
        breaker.generation,
        breaker.length,
        breaker.first,
        breaker.second,
        breaker.since,
        breaker.seen,
    ) = _NODE.unpack_from(raw, at)
    at += _NODE.size
    breaker.name = raw[at : at + name_size]
    if not 0 < len(breaker.name) == name_size <= MAX_NODE_NAME or breaker.state > HALF_OPEN or breaker.reason >= len(REASONS):
        raise ValueError("no such node")
    at += name_size
    breaker.leases = []
    if leases:
        breaker.leases += _LEASES[leases].unpack_from(raw, at)
        at += _LEASES[leases].size
    breaker.window = []
    if window:
        breaker.window += _WINDOWS[window].unpack_from(raw, at)
        at += _WINDOWS[window].size
    return breaker, at
