"""Numbers and names as WebAssembly's binary format writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from proxy_wasm.build.errors import FormatError

Item = TypeVar("Item")

_MOST_BITS: Final = 70
"""Of ten bytes: what a number of 64 bits takes."""


def unsigned(value: int) -> bytes:
    """A number that is not negative."""
    out = bytearray()
    while True:
        low = value & 0x7F
        value >>= 7
        if not value:
            out.append(low)
            return bytes(out)
        out.append(low | 0x80)


def signed(value: int) -> bytes:
    """A number that may be negative."""
    out = bytearray()
    while True:
        low = value & 0x7F
        value >>= 7
        if value == (-1 if low & 0x40 else 0):
            out.append(low)
            return bytes(out)
        out.append(low | 0x80)


def text(value: str) -> bytes:
    """A name: its length and its UTF-8."""
    encoded = value.encode()
    return unsigned(len(encoded)) + encoded


class Reader:
    """Reads from `position` up to `end`. Raises FormatError past the end."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end
        if self.end > len(data):
            raise FormatError("the file ends within a section")

    @property
    def exhausted(self) -> bool:
        """Whether all was read."""
        return self.position >= self.end

    def byte(self) -> int:
        """One byte."""
        if self.position >= self.end:
            raise FormatError("the file ends too early")
        value = self.data[self.position]
        self.position += 1
        return value

    def unsigned(self) -> int:
        """A number that is not negative."""
        result = shift = 0
        while True:
            byte = self.byte()
            result |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return result
            if shift >= _MOST_BITS:
                raise FormatError("a number is longer than any can be")

    def signed(self) -> int:
        """A number that may be negative."""
        result = shift = 0
        while True:
            byte = self.byte()
            result |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return result - (1 << shift) if byte & 0x40 else result
            if shift >= _MOST_BITS:
                raise FormatError("a number is longer than any can be")

    def one_of(self, known: Mapping[int, Item] | Sequence[Item], what: str) -> Item:
        """What one byte stands for. Raises FormatError when it stands for nothing."""
        number = self.byte()
        try:
            return known[number]
        except LookupError:
            raise FormatError(f"{what} {number:#x} is not known here") from None

    def take(self, size: int) -> bytes:
        """So many bytes."""
        if self.position + size > self.end:
            raise FormatError("the file ends too early")
        value = self.data[self.position : self.position + size]
        self.position += size
        return value

    def text(self) -> str:
        """A name."""
        return self.take(self.unsigned()).decode("utf-8", "replace")

    def part(self, size: int) -> Reader:
        """A reader of the next bytes, which this one skips."""
        part = Reader(self.data, self.position, self.position + size)
        if part.end > self.end:
            raise FormatError("the file ends too early")
        self.position += size
        return part
