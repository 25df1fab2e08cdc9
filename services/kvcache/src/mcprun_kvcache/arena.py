"""The arena: a sparse file of shared memory."""

import ctypes
import fcntl
import os
from pathlib import Path
from typing import Protocol

from mcprun.errors import FailedPrecondition

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Arena(Protocol):
    """Memory that workers map. The one on the CPU is `SharedFile`; one on a CUDA device would stand behind the same contract."""

    byte_size: int
    device: str

    def discard(self, offset: int, byte_size: int) -> None:
        """Gives pages back to the system; they read as zeros afterwards. Both numbers are multiples of the page size."""

    def committed(self, offset: int, byte_size: int) -> int:
        """Bytes of memory that are used in a range."""


class SharedFile:
    """A sparse file in a file system that is memory, such as /dev/shm. One process owns it: it is locked."""

    device = "cpu"

    def __init__(self, path: Path, byte_size: int) -> None:
        """Opens the file, or makes it. Raises FailedPrecondition when another process owns it or the system refuses it."""
        self.path = path
        self.byte_size = byte_size
        try:
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise FailedPrecondition(f"the arena {path} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.existed = os.fstat(self.descriptor).st_size > 0
            if not self.existed:
                os.ftruncate(self.descriptor, byte_size)
        except BlockingIOError as error:
            os.close(self.descriptor)
            raise FailedPrecondition(f"the arena {path} belongs to another process that runs") from error
        except OSError as error:
            os.close(self.descriptor)
            raise FailedPrecondition(f"the arena {path} cannot have {byte_size} bytes: {error.strerror}") from error

    def read(self, offset: int, byte_size: int) -> bytes:
        """Bytes of the file; fewer at its end."""
        return os.pread(self.descriptor, byte_size, offset)

    def write(self, offset: int, data: bytes) -> None:
        """Writes bytes. Raises OSError, such as ENOSPC when there is no memory left."""
        os.pwrite(self.descriptor, data, offset)

    def discard(self, offset: int, byte_size: int) -> None:
        """Punches a hole. Raises OSError."""
        if _fallocate(self.descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, byte_size) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def committed(self, offset: int, byte_size: int) -> int:
        """Bytes in a range that are no hole."""
        used, position, end = 0, offset, offset + byte_size
        while position < end:
            try:
                data = os.lseek(self.descriptor, position, os.SEEK_DATA)
            except OSError:  # ENXIO: only a hole is left
                break
            if data >= end:
                break
            hole = min(end, os.lseek(self.descriptor, data, os.SEEK_HOLE))
            used += hole - data
            position = hole
        return used

    def committed_in_all(self) -> int:
        """Bytes of memory of the whole file, by the kernel's block count."""
        return os.fstat(self.descriptor).st_blocks * 512

    def close(self, *, remove: bool) -> None:
        """Gives the file up, and removes it when asked."""
        if remove:
            self.path.unlink(missing_ok=True)
        os.close(self.descriptor)
