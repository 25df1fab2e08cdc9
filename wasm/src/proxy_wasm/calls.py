"""Calls from the filter to other services, over the host's clusters.

The host makes every call on behalf of the root context, so that it outlives the stream that asked; what comes for a context that was
deleted meanwhile is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from proxy_wasm import pairs
from proxy_wasm.abi import BufferType, MapType, Status
from proxy_wasm.binding import bound
from proxy_wasm.errors import CallFailed, GrpcCallFailed, check
from proxy_wasm.futures import Future
from proxy_wasm.headers import HeaderList, encode_pairs

if TYPE_CHECKING:
    from proxy_wasm.contexts import Context

HeaderPairs = Iterable[tuple[str | bytes, str | bytes]]

_NO_SUCH_CLUSTER = frozenset({int(Status.BAD_ARGUMENT), int(Status.PARSE_FAILURE), int(Status.NOT_FOUND)})
_RESPONSE_HEADERS = int(MapType.HTTP_CALL_RESPONSE_HEADERS)
_RESPONSE_TRAILERS = int(MapType.HTTP_CALL_RESPONSE_TRAILERS)
_RESPONSE_BODY = int(BufferType.HTTP_CALL_RESPONSE_BODY)
_INITIAL_METADATA = int(MapType.GRPC_CALL_INITIAL_METADATA)
_TRAILING_METADATA = int(MapType.GRPC_CALL_TRAILING_METADATA)
_MESSAGE = int(BufferType.GRPC_CALL_MESSAGE)


class HttpResponse:
    """What a service answered."""

    __slots__ = ("body", "headers", "trailers")

    def __init__(self, headers: HeaderList, body: bytes, trailers: HeaderList) -> None:
        self.headers = headers
        self.body = body
        self.trailers = trailers

    @property
    def status(self) -> int:
        """The HTTP status; 0 when the service sent none that is a number."""
        status = self.headers.get(":status", b"")
        return int(status) if status and status.isdigit() else 0

    def __repr__(self) -> str:
        return f"HttpResponse(status={self.status}, body={self.body[:100]!r})"


class HttpCall(Future[HttpResponse]):
    """An HTTP request under way. Its error is a `CallFailed`."""

    def _answered(self, header_count: int, body_size: int, trailer_count: int) -> None:
        if header_count == 0:
            self._fail(CallFailed("the HTTP call was not answered: the timeout passed, or the connection failed"))
            return
        host = bound.host
        headers = HeaderList(pairs.decode(host.get_header_pairs(_RESPONSE_HEADERS) or b""))
        body = (host.get_buffer(_RESPONSE_BODY, 0, body_size) or b"") if body_size else b""
        trailers = HeaderList(pairs.decode(host.get_header_pairs(_RESPONSE_TRAILERS) or b"") if trailer_count else ())
        self._succeed(HttpResponse(headers, body, trailers))


class GrpcReceiver:
    """What the dispatcher tells of a gRPC call or stream."""

    _token: int

    def _initial_metadata(self, headers: HeaderList) -> None: ...

    def _message(self, message: bytes) -> bool:
        """Whether the call has ended with it."""
        return False

    def _trailing_metadata(self, headers: HeaderList) -> None: ...

    def _closed(self, status: int, message: str) -> None: ...


class GrpcCall(Future[bytes], GrpcReceiver):
    """A unary gRPC call under way. Its result is the message, its error a `GrpcCallFailed`."""

    def _message(self, message: bytes) -> bool:
        self._succeed(message)
        return True

    def _closed(self, status: int, message: str) -> None:
        self._fail(GrpcCallFailed(status, message))

    def cancel(self) -> None:
        """Ends the call; nobody is told any more. Nothing happens when it has ended."""
        if bound.machine.calls.pop(self._token, None) is not None:
            bound.host.grpc_cancel(self._token)


class GrpcStream(GrpcReceiver):
    """A gRPC stream. Assign functions to the `on_` attributes to be told of what comes; they run in the owner's context."""

    def __init__(self, owner: Context, token: int) -> None:
        self._owner = owner
        self._token = token
        self.on_initial_metadata: Callable[[HeaderList], object] | None = None
        self.on_message: Callable[[bytes], object] | None = None
        self.on_trailing_metadata: Callable[[HeaderList], object] | None = None
        self.on_close: Callable[[GrpcCallFailed | None], object] | None = None
        """Told None for the status OK."""
        self.closed = False
        """Whether it has ended."""

    def send(self, message: bytes, *, end_of_stream: bool = False) -> None:
        """Sends one message; the last one with `end_of_stream`. Raises `HostcallFailed` when the stream has ended."""
        check("grpc_send", bound.host.grpc_send(self._token, message, int(end_of_stream)))

    def close(self) -> None:
        """Says that no more messages will be sent. What the service sends still comes."""
        check("grpc_close", bound.host.grpc_close(self._token))

    def cancel(self) -> None:
        """Ends the stream; nobody is told any more. Nothing happens when it has ended."""
        self.closed = True
        if bound.machine.calls.pop(self._token, None) is not None:
            bound.host.grpc_cancel(self._token)

    def _initial_metadata(self, headers: HeaderList) -> None:
        if self.on_initial_metadata is not None:
            bound.machine.run(self._owner, self.on_initial_metadata, headers)

    def _message(self, message: bytes) -> bool:
        if self.on_message is not None:
            bound.machine.run(self._owner, self.on_message, message)
        return False

    def _trailing_metadata(self, headers: HeaderList) -> None:
        if self.on_trailing_metadata is not None:
            bound.machine.run(self._owner, self.on_trailing_metadata, headers)

    def _closed(self, status: int, message: str) -> None:
        self.closed = True
        if self.on_close is not None:
            bound.machine.run(self._owner, self.on_close, None if status == 0 else GrpcCallFailed(status, message))


def start_http_call(
    owner: Context,
    cluster: str,
    *,
    method: str,
    path: str,
    authority: str | None,
    headers: HeaderPairs,
    body: bytes,
    trailers: HeaderPairs,
    timeout: float,
) -> HttpCall:
    """See `Context.http_call`."""
    pseudo: list[tuple[str | bytes, str | bytes]] = [(":method", method), (":path", path), (":authority", authority or cluster)]
    status, token = bound.host.http_call(
        cluster.encode(), encode_pairs([*pseudo, *headers]), body, encode_pairs(trailers), milliseconds(timeout)
    )
    call = HttpCall(owner)
    if status == 0:
        bound.machine.calls[token] = call
    else:
        call._fail(CallFailed(_reason(cluster, status)))
    return call


def start_grpc_call(
    owner: Context, cluster: str | bytes, service: str, method: str, message: bytes, *, metadata: HeaderPairs, timeout: float
) -> GrpcCall:
    """See `Context.grpc_call`."""
    status, token = bound.host.grpc_call(
        _grpc_service(cluster), service.encode(), method.encode(), encode_pairs(metadata), message, milliseconds(timeout)
    )
    call = GrpcCall(owner)
    call._token = token
    if status == 0:
        bound.machine.calls[token] = call
    else:
        call._fail(GrpcCallFailed(14, _reason(cluster, status)))
    return call


def open_grpc_stream(owner: Context, cluster: str | bytes, service: str, method: str, *, metadata: HeaderPairs) -> GrpcStream:
    """See `Context.grpc_stream`."""
    status, token = bound.host.grpc_stream(_grpc_service(cluster), service.encode(), method.encode(), encode_pairs(metadata))
    if status != 0:
        raise GrpcCallFailed(14, _reason(cluster, status))
    stream = GrpcStream(owner, token)
    bound.machine.calls[token] = stream
    return stream


def received_metadata(map_type: int) -> HeaderList:
    """The metadata that a callback of a gRPC call is about."""
    return HeaderList(pairs.decode(bound.host.get_header_pairs(map_type) or b""))


def received_initial_metadata() -> HeaderList:
    """Within on_grpc_receive_initial_metadata."""
    return received_metadata(_INITIAL_METADATA)


def received_trailing_metadata() -> HeaderList:
    """Within on_grpc_receive_trailing_metadata."""
    return received_metadata(_TRAILING_METADATA)


def received_message(size: int) -> bytes:
    """Within on_grpc_receive."""
    return (bound.host.get_buffer(_MESSAGE, 0, size) or b"") if size else b""


def milliseconds(seconds: float) -> int:
    """At least one. Raises `ValueError` unless it is positive."""
    if not 0 < seconds < 4_000_000:
        raise ValueError(f"a timeout is a positive number of seconds, not {seconds}")
    return max(1, round(seconds * 1000))


def _reason(cluster: str | bytes, status: int) -> str:
    if status in _NO_SUCH_CLUSTER:
        return f"the host knows no cluster {cluster!r}, or refuses the request's headers"
    return f"the host could not send to the cluster {cluster!r} (status {status})"


def _grpc_service(cluster: str | bytes) -> bytes:
    """An encoded `envoy.config.core.v3.GrpcService`. A bare name would do as well, unless it happens to decode as one."""
    if isinstance(cluster, bytes):
        return cluster
    return _field(1, _field(1, cluster.encode()))


def _field(number: int, value: bytes) -> bytes:
    """A length-delimited field of a protobuf message."""
    encoded = bytearray((number << 3 | 2,))
    length = len(value)
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded) + value
