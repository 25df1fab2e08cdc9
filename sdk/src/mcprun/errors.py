"""Every way in which the mesh says no, with its gRPC code and its HTTP status in one table."""

from dataclasses import dataclass
from typing import ClassVar

import grpc

MAX_MESSAGE_BYTES = 4096
"""Clients of gRPC read 8 KiB of headers and trailers, unless told otherwise."""

_WIDEST = 12
"""Bytes of the character that takes most in that encoding."""


class MeshError(Exception):
    """A request that ends without its answer. `message` is written for the caller.

    Subclasses fix the gRPC code; `HTTP_STATUS` maps each code to an HTTP status.
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        """Seconds after which a new try makes sense, None when there is no advice."""

    @property
    def brief(self) -> str:
        """The message, cut where it would not fit into a header any more: it may repeat what a caller sent."""
        return brief(self.message)


class InvalidInput(MeshError):
    """The request can never succeed as it is."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(MeshError):
    """No such model, version, region or endpoint."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(MeshError):
    """The name is taken."""

    code = grpc.StatusCode.ALREADY_EXISTS


class FailedPrecondition(MeshError):
    """The state of the mesh forbids it, and a new try alone will not help."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class ResourceExhausted(MeshError):
    """A bound was reached: a full queue, a message over the limit, a quota."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class Unavailable(MeshError):
    """A part of the mesh is away; the same request may succeed later."""

    code = grpc.StatusCode.UNAVAILABLE


class Loading(Unavailable):
    """The model is not warm yet. Nothing is broken: circuit breakers must not count it."""


class DeadlineExceeded(MeshError):
    """The caller's time was over before the answer."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(MeshError):
    """The caller left."""

    code = grpc.StatusCode.CANCELLED


class Unimplemented(MeshError):
    """The protocol has it and this mesh does not."""

    code = grpc.StatusCode.UNIMPLEMENTED


class Internal(MeshError):
    """A fault of the mesh or of the model."""

    code = grpc.StatusCode.INTERNAL


HTTP_STATUS: dict[grpc.StatusCode, int] = {
    grpc.StatusCode.OK: 200,
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.UNKNOWN: 500,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DATA_LOSS: 500,
    grpc.StatusCode.UNAUTHENTICATED: 401,
}

CODE_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

_ERROR_BY_CODE: dict[grpc.StatusCode, type[MeshError]] = {
    error.code: error
    for error in (
        InvalidInput,
        NotFound,
        AlreadyExists,
        FailedPrecondition,
        ResourceExhausted,
        Unavailable,
        DeadlineExceeded,
        Cancelled,
        Unimplemented,
        Internal,
    )
}


def brief(message: str) -> str:
    """A message cut to `MAX_MESSAGE_BYTES` as gRPC's trailers carry it: percent-encoded UTF-8."""
    if len(message) * _WIDEST <= MAX_MESSAGE_BYTES:
        return message
    room = MAX_MESSAGE_BYTES - _WIDEST
    for position, character in enumerate(message):
        room -= 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode(errors="replace"))
        if room < 0:
            return message[:position] + "…"
    return message


@dataclass(frozen=True, slots=True)
class MessageTooLarge:
    """Builds the one refusal for a message over the size limit."""

    limit_bytes: int

    def error(self, what: str, size_bytes: int | None) -> ResourceExhausted:
        """The refusal of `what` (such as "the request"), whose size is None when it is only known to be over the limit."""
        size = f"{size_bytes} bytes" if size_bytes is not None else "more than that"
        return ResourceExhausted(f"{what} is too large: at most {self.limit_bytes} bytes (max_message_bytes) are allowed, got {size}")


def from_code(code: int, message: str, *, retry_after: float | None = None) -> MeshError:
    """The error for a gRPC status number, such as one that came over the wire from another service.

    A number that has no class of its own becomes `Internal` with the number in its message.
    """
    status = CODE_BY_NUMBER.get(code)
    kind = _ERROR_BY_CODE.get(status) if status is not None else None
    if kind is None:
        return Internal(f"{message} (gRPC status {code})", retry_after=retry_after)
    return kind(message, retry_after=retry_after)
