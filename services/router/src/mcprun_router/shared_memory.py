"""Tensors in regions of shared memory that clients registered.

Regions are read and written with pread and pwrite, not mapped: a client that truncates its region then gets an error,
where a mapping would kill this process with SIGBUS.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from mcprun.errors import AlreadyExists, InvalidInput, NotFound

RESERVED = "mcprun-"
"""Objects whose names begin so are the mesh's own, such as the arena of keys and values."""
FOLDER = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory


@dataclass(frozen=True, slots=True)
class Region:
    """A registered region."""

    name: str
    key: str
    """The name of the POSIX shared memory object, such as "/input"."""
    offset: int
    """Where it begins in the object, in bytes."""
    byte_size: int
    descriptor: int

    def _locate(self, offset: int, byte_size: int) -> int:
        if offset < 0 or byte_size < 0 or offset + byte_size > self.byte_size:
            raise InvalidInput(
                f"shared memory region {self.name!r} has {self.byte_size} bytes, but bytes {offset} to {offset + byte_size} are asked for"
            )
        return self.offset + offset

    def read(self, offset: int, byte_size: int) -> bytes:
        """`byte_size` bytes from `offset` on. Raises InvalidInput when they are not all there."""
        data = os.pread(self.descriptor, byte_size, self._locate(offset, byte_size))
        if len(data) != byte_size:
            raise InvalidInput(f"shared memory region {self.name!r} has shrunk: {byte_size} bytes expected at {offset}, got {len(data)}")
        return data

    def write(self, offset: int, data: bytes) -> None:
        """Writes `data` at `offset`. Raises InvalidInput when the object has become too small for it."""
        position = self._locate(offset, len(data))
        if os.fstat(self.descriptor).st_size < position + len(data):
            raise InvalidInput(f"shared memory region {self.name!r} has shrunk: no room for {len(data)} bytes at {offset}")
        os.pwrite(self.descriptor, data, position)


class SharedMemory:
    """The regions that clients registered with this router."""

    def __init__(self, *, max_regions: int = 4096) -> None:
        self._regions: dict[str, Region] = {}
        self._max_regions = max_regions

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Registers a region. Raises InvalidInput when the object is not there or too small, AlreadyExists for a taken name."""
        if not name:
            raise InvalidInput("a shared memory region needs a name")
        if name in self._regions:
            raise AlreadyExists(f"shared memory region {name!r} is registered already")
        if len(self._regions) >= self._max_regions:
            raise InvalidInput(f"at most {self._max_regions} shared memory regions can be registered")
        if byte_size <= 0:
            raise InvalidInput(f"shared memory region {name!r}: a byte_size above 0 is expected, got {byte_size}")
        plain = key.removeprefix("/")
        if not plain or "/" in plain or "\0" in plain or plain in (".", ".."):
            raise InvalidInput(f"shared memory region {name!r}: the key must be the name of a shared memory object, got {key!r}")
        if plain.startswith(RESERVED):
            raise InvalidInput(f"shared memory region {name!r}: objects named {RESERVED}... belong to the mesh, got {key!r}")
        try:
            descriptor = os.open(FOLDER / plain, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise InvalidInput(f"shared memory region {name!r}: cannot open the object {key!r}: {error.strerror}") from error
        size = os.fstat(descriptor).st_size
        if offset < 0 or offset + byte_size > size:
            os.close(descriptor)
            raise InvalidInput(
                f"shared memory region {name!r}: the object {key!r} has {size} bytes, but {byte_size} at {offset} are to be registered"
            )
        self._regions[name] = Region(name, key, offset, byte_size, descriptor)

    def unregister(self, name: str) -> None:
        """Forgets one region, or all of them when `name` is empty. Forgetting an unknown one is no error."""
        for known in [name] if name else list(self._regions):
            region = self._regions.pop(known, None)
            if region is not None:
                os.close(region.descriptor)

    def get(self, name: str) -> Region:
        """A registered region. Raises NotFound."""
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"no shared memory region is registered as {name!r}")
        return region

    def status(self, name: str) -> list[Region]:
        """One region, or all of them when `name` is empty. Raises NotFound."""
        return [self.get(name)] if name else list(self._regions.values())
