"""The classes that a filter derives from: one for the filter as a whole, one for each HTTP stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from proxy_wasm import properties
from proxy_wasm.abi import Action, StreamType
from proxy_wasm.binding import bound
from proxy_wasm.body import REQUEST_BODY, RESPONSE_BODY, Body
from proxy_wasm.calls import GrpcCall, GrpcStream, HeaderPairs, HttpCall, open_grpc_stream, start_grpc_call, start_http_call
from proxy_wasm.errors import HostcallFailed, check
from proxy_wasm.headers import REQUEST_HEADERS, REQUEST_TRAILERS, RESPONSE_HEADERS, RESPONSE_TRAILERS, HeaderMap, encode_pairs
from proxy_wasm.timers import Sleep, Timer, TimerQueue

if TYPE_CHECKING:
    from proxy_wasm.tasks import Task

    Answer = Action | None | Awaitable[Action | None]
    Ended = None | Awaitable[None]

_REQUEST = int(StreamType.REQUEST)
_RESPONSE = int(StreamType.RESPONSE)


class ErrorPolicy(Enum):
    """What becomes of a stream when the filter's own code raises. It is logged and counted in any case."""

    CONTINUE = "continue"
    """The stream goes on as if the callback had done nothing."""
    REFUSE = "refuse"
    """The client gets status 500, or INTERNAL in gRPC, unless it has been answered already: for filters that protect something."""


class Context:
    """What both kinds of context can do."""

    on_error: ClassVar[ErrorPolicy] = ErrorPolicy.CONTINUE
    """What becomes of a stream when a callback raises."""

    _deleted = False
    _over = False
    _tasks: list[Task] | None = None
    _grpc: list[GrpcStream | GrpcCall] | None = None

    def __init__(self, context_id: int) -> None:
        self._id = context_id

    @property
    def id(self) -> int:
        """The host's number of this context."""
        return self._id

    @property
    def _timers(self) -> TimerQueue:
        raise NotImplementedError

    def get_property(self, *path: str) -> bytes | None:
        """What the host tells under that path, as it encodes it. See `proxy_wasm.properties` for text, numbers and the rest."""
        bound.enter(self._id)
        return properties.get(*path)

    def set_property(self, *path: str, value: bytes) -> None:
        """Keeps bytes for filters after this one and for access logs. See `proxy_wasm.properties.put`."""
        bound.enter(self._id)
        properties.put(*path, value=value)

    def http_call(
        self,
        cluster: str,
        *,
        method: str = "GET",
        path: str = "/",
        authority: str | None = None,
        headers: HeaderPairs = (),
        body: bytes = b"",
        trailers: HeaderPairs = (),
        timeout: float = 1.0,
    ) -> HttpCall:
        """Sends a request to one of the host's clusters; `timeout` in seconds. `authority` is the cluster's name unless given.

        Raises `ValueError` for headers that cannot be. Everything else that goes wrong is the call's error, a `CallFailed`.
        """
        return start_http_call(
            self, cluster, method=method, path=path, authority=authority, headers=headers, body=body, trailers=trailers, timeout=timeout
        )

    def grpc_call(
        self, cluster: str | bytes, service: str, method: str, message: bytes, *, metadata: HeaderPairs = (), timeout: float = 1.0
    ) -> GrpcCall:
        """Calls a unary gRPC method, e.g. `grpc_call("auth", "acme.v1.Auth", "Check", request)`; `timeout` in seconds.

        `cluster` is the name of one of the host's clusters, or as bytes an encoded `envoy.config.core.v3.GrpcService`.
        """
        call = start_grpc_call(self, cluster, service, method, message, metadata=metadata, timeout=timeout)
        self._remember(call)
        return call

    def grpc_stream(self, cluster: str | bytes, service: str, method: str, *, metadata: HeaderPairs = ()) -> GrpcStream:
        """Opens a gRPC stream. Raises `GrpcCallFailed` when the host cannot."""
        stream = open_grpc_stream(self, cluster, service, method, metadata=metadata)
        self._remember(stream)
        return stream

    def call_later(self, seconds: float, function: Callable[[], object]) -> Timer:
        """Calls `function` once, in this context, unless it is deleted first. The host counts in milliseconds."""
        return self._timers.call_later(seconds, self, function)

    def sleep(self, seconds: float) -> Sleep:
        """What to await in a callback in order to go on later."""
        sleep = Sleep(self)
        self._timers.call_later(seconds, self, lambda: sleep._succeed(None))
        return sleep

    def done(self) -> None:
        """Tells the host that what `on_done` answered False for is finished."""
        previous = bound.enter(self._id)
        status = bound.host.done()
        bound.leave(previous)
        check("done", status)

    def _remember(self, call: GrpcStream | GrpcCall) -> None:
        if self._grpc is None:
            self._grpc = []
        self._grpc.append(call)


class RootContext(Context):
    """The filter itself: one object for each configuration in each worker. It lives as long as the configuration.

    Every callback may be `async def`; the host does not wait for it then.
    """

    http_context: type[HttpContext[Any]] | None = None
    """The class that handles HTTP streams. Which of its callbacks are overridden decides what the module exports.

    A root may set another one for itself, with no more callbacks than that.
    """
    _creates_streams: ClassVar[bool] = False
    """Whether it has a `create_http_context` of its own."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._creates_streams = cls.create_http_context is not RootContext.create_http_context

    def __init__(self, context_id: int) -> None:
        super().__init__(context_id)
        self._timer_queue = TimerQueue(self)

    @property
    def _timers(self) -> TimerQueue:
        return self._timer_queue

    def set_tick_period(self, milliseconds: int) -> None:
        """How often `on_tick` is called; 0 stops it."""
        if milliseconds < 0:
            raise ValueError("a period cannot be negative")
        self._timer_queue.set_tick_period(milliseconds)

    def create_http_context(self, context_id: int) -> HttpContext[Any] | None:
        """The object that handles a new stream; None to leave the stream alone."""
        return None if self.http_context is None else self.http_context(context_id, self)

    def on_vm_start(self, configuration: bytes) -> bool:
        """The module was loaded into this worker. False makes the host refuse it."""
        return True

    def on_configure(self, configuration: bytes) -> bool:
        """Here is the plugin's configuration. False, or an exception, makes the host refuse it: a static listener stops Envoy then."""
        return True

    def on_tick(self) -> Ended:
        """The period of `set_tick_period` has passed."""

    def on_queue_ready(self, queue_id: int) -> Ended:
        """A message came into a queue that this context registered. Another worker may take it first."""

    def on_foreign_function(self, function_id: int, arguments: bytes) -> Ended:
        """The host called a function that is not of the ABI."""

    def on_done(self) -> bool:
        """The host wants to end this context. False puts it off until `done` is called."""
        return True

    def on_log(self) -> None:
        """The context has ended."""

    def on_delete(self) -> None:
        """The context is gone."""


RootT_co = TypeVar("RootT_co", bound=RootContext, covariant=True)


class HttpContext(Context, Generic[RootT_co]):
    """One HTTP stream.

    A callback of headers, body or trailers answers `Action.CONTINUE` (or nothing) to let them pass, or `Action.PAUSE` to keep them until
    `continue_request` or `continue_response`. It may be `async def`: while it waits the direction is paused, and when it ends
    its answer counts as usual.

    Envoy pauses so: after PAUSE of headers no body comes until they are let pass; after PAUSE of a chunk of body the next
    callback is about all that came so far. Headers can be changed only until they pass: in the callback of the body they are gone.
    """

    _told_of_deletion: ClassVar[bool] = False
    """Whether it has an `on_delete` of its own."""
    _local_response_sent = False
    _response_started = False
    _request_paused = False
    _response_paused = False
    _request_task: Task | None = None
    _response_task: Task | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._told_of_deletion = cls.on_delete is not HttpContext.on_delete

    def __init__(self, context_id: int, root: RootT_co) -> None:
        self._id = context_id
        self.root = root
        """The filter that this stream goes through."""

    @property
    def _timers(self) -> TimerQueue:
        return self.root._timers

    @property
    def request_headers(self) -> HeaderMap:
        """Available from on_request_headers until it lets them pass, and in on_log."""
        bound.enter(self._id)
        return REQUEST_HEADERS

    @property
    def request_trailers(self) -> HeaderMap:
        """Available in on_request_trailers, and in on_log."""
        bound.enter(self._id)
        return REQUEST_TRAILERS

    @property
    def response_headers(self) -> HeaderMap:
        """Available from on_response_headers until it lets them pass, and in on_log."""
        bound.enter(self._id)
        return RESPONSE_HEADERS

    @property
    def response_trailers(self) -> HeaderMap:
        """Available in on_response_trailers, and in on_log."""
        bound.enter(self._id)
        return RESPONSE_TRAILERS

    @property
    def request_body(self) -> Body:
        """Available in on_request_body, and while that keeps it paused."""
        bound.enter(self._id)
        return REQUEST_BODY

    @property
    def response_body(self) -> Body:
        """Available in on_response_body, and while that keeps it paused."""
        bound.enter(self._id)
        return RESPONSE_BODY

    def on_request_headers(self, headers: HeaderMap, end_of_stream: bool) -> Answer:
        """The request's headers came. With `end_of_stream` there is neither body nor trailers."""

    def on_request_body(self, size: int, end_of_stream: bool) -> Answer:
        """So many bytes of the request's body are there: a chunk, or all that was kept by PAUSE with the chunk that just came."""

    def on_request_trailers(self, trailers: HeaderMap) -> Answer:
        """The request ends with trailers."""

    def on_response_headers(self, headers: HeaderMap, end_of_stream: bool) -> Answer:
        """The response's headers came: of the upstream, or of a local response."""

    def on_response_body(self, size: int, end_of_stream: bool) -> Answer:
        """So many bytes of the response's body are there: a chunk, or all that was kept by PAUSE with the chunk that just came."""

    def on_response_trailers(self, trailers: HeaderMap) -> Answer:
        """The response ends with trailers, as each of gRPC does."""

    def on_done(self) -> bool:
        """The stream has ended, or was reset. False puts off its deletion until `done` is called."""
        return True

    def on_log(self) -> None:
        """The stream has ended; all its headers and properties can be read once more."""

    def on_delete(self) -> None:
        """The stream is gone."""

    def send_local_response(
        self, status: int, *, body: bytes | str = b"", headers: HeaderPairs = (), details: str = "", grpc_status: int | None = None
    ) -> None:
        """Answers the client instead of an upstream. The stream stays paused, whatever the callback answers.

        For a gRPC request Envoy answers in gRPC's way: `grpc_status`, or what corresponds to `status`, with the body as message. The
        response goes through on_response_headers like any other. `details` appear in access logs, without spaces.
        Raises `HostcallFailed` when the stream has been answered already.
        """
        encoded = encode_pairs(headers)
        content = body.encode() if isinstance(body, str) else body
        previous = bound.enter(self._id)
        outcome = bound.host.send_local_response(
            status, details.encode(), content, encoded, -1 if grpc_status is None else int(grpc_status)
        )
        bound.leave(previous)
        check("send_local_response", outcome)
        self._local_response_sent = True

    def continue_request(self) -> None:
        """Lets the request pass that a callback answered PAUSE for."""
        self._request_paused = False
        self._stream_call("continue_stream", _REQUEST)

    def continue_response(self) -> None:
        """Lets the response pass that a callback answered PAUSE for."""
        self._response_paused = False
        self._stream_call("continue_stream", _RESPONSE)

    def close_request(self) -> None:
        """Resets the stream towards the upstream."""
        self._stream_call("close_stream", _REQUEST)

    def close_response(self) -> None:
        """Resets the stream towards the client."""
        self._stream_call("close_stream", _RESPONSE)

    def _stream_call(self, name: str, stream_type: int) -> None:
        previous = bound.enter(self._id)
        status: int = getattr(bound.host, name)(stream_type)
        bound.leave(previous)
        if status != 0:
            raise HostcallFailed(name, status)
