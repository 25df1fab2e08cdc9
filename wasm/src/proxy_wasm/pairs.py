"""Header maps as the ABI encodes them.

A little-endian 32-bit count; for each pair the lengths of its name and value, 32 bits each; then each name and value followed by NUL.
"""

from collections.abc import Iterable
from struct import pack, unpack_from

EMPTY = b"\0\0\0\0"
"""A map without pairs."""


def encode(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The encoded map."""
    lengths: list[int] = []
    strings: list[bytes] = []
    for name, value in pairs:
        lengths += (len(name), len(value))
        strings += (name, value)
    if not lengths:
        return EMPTY
    strings.append(b"")
    return pack(f"<{len(lengths) + 1}I", len(lengths) // 2, *lengths) + b"\0".join(strings)


def decode(data: bytes) -> list[tuple[bytes, bytes]]:
    """The pairs in their order. Of input that is cut off or lies about its lengths, the pairs that are whole; never raises."""
    if len(data) < 4:
        return []
    count = int.from_bytes(data[:4], "little")
    if count > (len(data) - 4) // 8:
        return []
    lengths = unpack_from(f"<{2 * count}I", data, 4)
    position = 4 + 8 * count
    pairs = []
    for index in range(0, 2 * count, 2):
        middle = position + lengths[index]
        end = middle + 1 + lengths[index + 1]
        if end > len(data):
            break
        pairs.append((data[position:middle], data[middle + 1 : end]))
        position = end + 1
    return pairs
