"""One HTTP stream through the filter, by the rules of Envoy's filter chain."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ParamSpec

from proxy_wasm.abi import Action, GrpcStatus, StreamType
from proxy_wasm.headers import HeaderList
from proxy_wasm.testing.exchange import Exchange, HeaderInput, Message, RuleBroken, header_pairs

if TYPE_CHECKING:
    from proxy_wasm.testing.worker import Worker

Pairs = list[tuple[bytes, bytes]]
Arguments = ParamSpec("Arguments")

_GRPC_OF_HTTP = {
    400: GrpcStatus.INTERNAL,
    401: GrpcStatus.UNAUTHENTICATED,
    403: GrpcStatus.PERMISSION_DENIED,
    404: GrpcStatus.UNIMPLEMENTED,
    429: GrpcStatus.UNAVAILABLE,
    502: GrpcStatus.UNAVAILABLE,
    503: GrpcStatus.UNAVAILABLE,
    504: GrpcStatus.UNAVAILABLE,
}
"""As gRPC's own documents have it: http-grpc-status-mapping."""


class Half:
    """One direction of a stream: what came, what the filter holds, and what passed it."""

    def __init__(self, stream: SimulatedStream, side: StreamType) -> None:
        self.stream = stream
        self.name = "request" if side == StreamType.REQUEST else "response"
        self.headers: Pairs | None = None
        self.trailers: Pairs | None = None
        self.buffer = bytearray()
        """The chunk that the filter sees, with all that it kept by PAUSE."""
        self.at: str | None = None
        """What the filter decides about or has paused: headers, body or trailers."""
        self.paused = False
        self.passed: Message | None = None
        self._arrived: deque[bytes | Pairs] = deque()
        self._last_arrived = False
        self._ends_at: str | None = None

    @property
    def ended(self) -> bool:
        """Whether all of it has passed."""
        return self.passed is not None and self.passed.complete

    def begin(self, headers: Pairs, *, end: bool) -> None:
        """The headers come."""
        self.headers = headers
        self._last_arrived = end
        self._decide("headers", len(headers), int(end))

    def body(self, chunk: bytes, *, end: bool) -> None:
        """A chunk comes."""
        self._arrive(chunk, end=end)

    def end(self, trailers: Pairs) -> None:
        """The trailers come."""
        self._arrive(trailers, end=True)

    def proceed(self) -> None:
        """The filter lets pass what it has paused."""
        if self.paused and not self.stream.over and not (self is self.stream.request and self.stream.local_response_held):
            self._pass()
            self._process()

    def _arrive(self, part: bytes | Pairs, *, end: bool) -> None:
        if self.headers is None or self._last_arrived:
            raise RuleBroken(f"the {self.name} has {'not begun' if self.headers is None else 'ended'}")
        self._arrived.append(part)
        self._last_arrived = end
        self._process()

    def _process(self) -> None:
        # A pause of headers or trailers keeps all that comes after; a pause of body does not.
        while self._arrived and not (self.paused and self.at != "body") and not self.stream.over:
            part = self._arrived.popleft()
            if isinstance(part, bytes):
                self.buffer += part
                self._decide("body", len(self.buffer), int(self._last_arrived and not self._arrived))
            else:
                self.trailers = part
                self._decide("trailers", len(part))

    def _decide(self, at: str, *arguments: int) -> None:
        self.at = at
        self.paused = True
        if at == "trailers" or arguments[-1]:
            self._ends_at = at
        action = self.stream.callback(f"on_{self.name}_{at}", *arguments)
        if action == Action.CONTINUE and self.paused and not self.stream.over:
            self._pass()

    def _pass(self) -> None:
        """Gives on what is there now."""
        before = self.passed or Message(HeaderList(self.headers or ()), complete=False)
        trailers = HeaderList(self.trailers or ()) if self.at == "trailers" else before.trailers
        self.passed = Message(before.headers, before.body + bytes(self.buffer), trailers, complete=self._ends_at == self.at)
        self.buffer.clear()
        self.paused = False
        self.at = None
        if self.passed.complete:
            self._check_length()
        self.stream.passed(self)

    def _check_length(self) -> None:
        message = self.passed
        declared = message.headers.get("content-length") if message is not None else None
        if (
            message is None
            or declared is None
            or self.stream.request.headers is None
            or (b":method", b"HEAD") in self.stream.request.headers
        ):
            return
        if message.body and int(declared) != len(message.body):
            raise RuleBroken(
                f"the {self.name} has content-length {int(declared)}, but its body now {len(message.body)} bytes: "
                f"the header must be removed in on_{self.name}_headers, it cannot be changed any more when the body comes"
            )


class SimulatedStream(Exchange):
    """One request and its response, in one worker."""

    def __init__(self, worker: Worker, root_id: int, properties: dict[bytes, bytes]) -> None:
        self.worker = worker
        self.root_id = root_id
        self.context_id = worker.next_context_id()
        self.properties = properties
        """What the host tells, by paths whose parts are joined by NUL."""
        self.request = Half(self, StreamType.REQUEST)
        self.reply = Half(self, StreamType.RESPONSE)
        self.over = False
        """Whether the stream has ended."""
        self.logging = False
        self.local_response_held = False
        """Whether the filter has answered itself."""
        self.details = ""
        """Those of the local response."""
        self.was_reset = False
        """Whether the stream was cut off, by either side or by the filter."""
        self._local = False
        worker.streams[self.context_id] = self
        self.callback("on_context_create", root_id)

    @property
    def reached_upstream(self) -> bool:
        """Whether the request's headers have passed the filter."""
        return self.request.passed is not None

    @property
    def answered(self) -> bool:
        """Whether a response's headers have reached the client."""
        return self.reply.passed is not None

    @property
    def answered_locally(self) -> bool:
        """Whether the filter made the response."""
        return self._local and self.answered

    @property
    def sent_upstream(self) -> Message:
        """What reached the upstream so far."""
        if self.request.passed is None:
            raise RuleBroken("nothing of the request has reached the upstream")
        return self.request.passed

    @property
    def response(self) -> Message:
        """What reached the client so far."""
        if self.reply.passed is None:
            raise RuleBroken("nothing of a response has reached the client")
        return self.reply.passed

    @property
    def request_paused(self) -> bool:
        """Whether the filter keeps the request from going on."""
        return self.request.paused and not self.over

    @property
    def response_paused(self) -> bool:
        """Whether the filter keeps the response from going on."""
        return self.reply.paused and not self.over

    def send_body(self, chunk: bytes, *, end: bool = False) -> None:
        """The client sends a chunk."""
        self._act(self.request.body, chunk, end=end)

    def send_trailers(self, trailers: HeaderInput) -> None:
        """The client ends with trailers."""
        pairs = header_pairs(trailers)
        self._act(self.request.end, pairs)

    def respond(
        self, headers: HeaderInput = (), *, status: int = 200, body: bytes | Iterable[bytes] = b"", trailers: HeaderInput = ()
    ) -> None:
        """Has the upstream answer: `body` as one chunk, or as several."""
        chunks = ([body] if body else []) if isinstance(body, bytes) else list(body)
        trailer_pairs = header_pairs(trailers)
        pairs = header_pairs(headers)
        names = {name for name, _ in pairs}
        if isinstance(body, bytes) and body and not trailer_pairs and b"content-length" not in names:
            pairs.append((b"content-length", str(len(body)).encode()))
        self.respond_headers(pairs, status=status, end=not chunks and not trailer_pairs)
        for index, chunk in enumerate(chunks):
            self.respond_body(chunk, end=index == len(chunks) - 1 and not trailer_pairs)
        if trailer_pairs:
            self.respond_trailers(trailer_pairs)

    def respond_headers(self, headers: HeaderInput = (), *, status: int = 200, end: bool = False) -> None:
        """The upstream sends its headers. Raises `RuleBroken` when the request has not reached it."""
        if not self.reached_upstream:
            raise RuleBroken("the request has not reached the upstream")
        pairs = header_pairs(headers)
        if all(name != b":status" for name, _ in pairs):
            pairs.insert(0, (b":status", str(status).encode()))
        self._act(self.reply.begin, pairs, end=end)

    def respond_body(self, chunk: bytes, *, end: bool = False) -> None:
        """The upstream sends a chunk."""
        self._act(self.reply.body, chunk, end=end)

    def respond_trailers(self, trailers: HeaderInput) -> None:
        """The upstream ends with trailers."""
        pairs = header_pairs(trailers)
        self._act(self.reply.end, pairs)

    def reset(self) -> None:
        """The client goes away, or the upstream does."""
        self.was_reset = True
        self._finish()
        self.worker.world.settle()

    # What the worker and the host call

    def callback(self, name: str, *arguments: int) -> int:
        """Runs a callback of the filter about this stream, and what it asked for; a local response counts as PAUSE."""
        held = self.local_response_held
        action = self.worker.callback(name, self.context_id, *arguments)
        return int(Action.PAUSE) if self.local_response_held and not held else action

    def passed(self, half: Half) -> None:
        """Something passed the filter."""
        if half is self.reply and half.ended:
            self._finish()

    def half(self, stream_type: int) -> Half:
        """That direction."""
        return self.request if stream_type == StreamType.REQUEST else self.reply

    def answer(self, status: int, details: str, body: bytes, headers: Pairs, grpc_status: int) -> None:
        """Sends the filter's local response, as Envoy does: through the filter unless the upstream's response came there first."""
        if self.over:
            return
        self.details = details
        self._local = True
        if self.reply.passed is not None:
            # Too late for another response.
            self.reset()
            return
        through_filter = self.reply.headers is None
        self.reply = Half(self, StreamType.RESPONSE)
        pairs = self._local_headers(status, body, headers, grpc_status)
        content = b"" if self._is_grpc else body
        if not through_filter:
            self.reply.headers = pairs
            self.reply.passed = Message(HeaderList(pairs), content)
            self._finish()
            return
        self.reply.begin(pairs, end=not content)
        if content and not self.over:
            self.reply.body(content, end=True)

    # Its own

    @property
    def _is_grpc(self) -> bool:
        content_type = dict(self.request.headers or ()).get(b"content-type", b"")
        return content_type == b"application/grpc" or content_type.startswith(b"application/grpc+")

    def _local_headers(self, status: int, body: bytes, headers: Pairs, grpc_status: int) -> Pairs:
        if self._is_grpc:
            code = grpc_status if grpc_status >= 0 else int(_GRPC_OF_HTTP.get(status, GrpcStatus.UNKNOWN))
            pairs = [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-status", str(code).encode())]
            if body:
                pairs.append((b"grpc-message", body))
            return [*pairs, *((name, value) for name, value in headers if name not in {b"content-type", b"content-length"})]
        pairs = [(b":status", str(status).encode()), *headers]
        names = {name for name, _ in headers}
        if body:
            pairs.append((b"content-length", str(len(body)).encode()))
            if b"content-type" not in names:
                pairs.append((b"content-type", b"text/plain"))
        return pairs

    def _act(self, action: Callable[Arguments, None], *arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        if self.over:
            raise RuleBroken("the stream has ended")
        action(*arguments, **options)
        self.worker.world.settle()

    def _finish(self) -> None:
        if self.over:
            return
        self.over = True
        self.logging = True
        self.callback("on_log")
        self.logging = False
        self.callback("on_done")
        self.callback("on_delete")
        self.worker.forget(self.context_id)
