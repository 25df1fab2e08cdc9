"""Bodies of the stream that a callback is about."""

from proxy_wasm.abi import BufferType
from proxy_wasm.binding import bound
from proxy_wasm.errors import check

_ALL = 0x7FFFFFFF


class Body:
    """What the host has of a body now: the chunk that came, or all that came while the stream was paused.

    It holds nothing itself: every access is a hostcall. Where the host has no such body, reading finds it empty and writing raises
    `HostcallFailed`.
    """

    __slots__ = ("_type",)

    def __init__(self, buffer_type: int) -> None:
        self._type = int(buffer_type)

    @property
    def length(self) -> int:
        """In bytes."""
        status = bound.host.get_buffer_status(self._type)
        return 0 if status is None else status[0]

    def __len__(self) -> int:
        return self.length

    def __bool__(self) -> bool:
        """Whether there are bytes."""
        return self.length > 0

    def get(self, start: int = 0, size: int | None = None) -> bytes:
        """`size` bytes from `start` on, or fewer when it ends before; all the rest without `size`."""
        if start < 0 or (size is not None and size < 0):
            raise ValueError("start and size count bytes from the front: they cannot be negative")
        return bound.host.get_buffer(self._type, start, _ALL - start if size is None else size) or b""

    def set(self, value: bytes) -> None:
        """Puts these bytes in the place of all that are there."""
        check("set_buffer", bound.host.set_buffer(self._type, 0, self.length, value))

    def append(self, value: bytes) -> None:
        """Adds bytes at the end."""
        check("set_buffer", bound.host.set_buffer(self._type, self.length, 0, value))

    def prepend(self, value: bytes) -> None:
        """Adds bytes in front."""
        check("set_buffer", bound.host.set_buffer(self._type, 0, 0, value))


REQUEST_BODY = Body(BufferType.REQUEST_BODY)
RESPONSE_BODY = Body(BufferType.RESPONSE_BODY)
