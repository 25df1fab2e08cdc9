# ruff: noqa: D102 - the methods are those of the seam, which documents them
"""The hostcalls of one simulated worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from proxy_wasm import pairs
from proxy_wasm.abi import BufferType, MapType, MetricType, Status, StreamType
from proxy_wasm.headers import HeaderList
from proxy_wasm.testing.calls import SimulatedCall, SimulatedGrpcCall, SimulatedHttpCall
from proxy_wasm.testing.exchange import LogLine, Message
from proxy_wasm.testing.streams import Half, Pairs, SimulatedStream

if TYPE_CHECKING:
    from proxy_wasm.testing.worker import Worker

_LARGEST_VALUE = 2**64

ForeignFunction = Callable[[bytes], bytes]


class SimulatedHost:
    """Implements `proxy_wasm.hostcalls.Host`. What is not available in a callback is None, or BAD_ARGUMENT, as in Envoy."""

    def __init__(self, worker: Worker, foreign_functions: dict[str, ForeignFunction]) -> None:
        self._worker = worker
        self._world = worker.world
        self._foreign_functions = foreign_functions
        self.context_id = 0
        """Whom the calls apply to."""
        self.configuration: dict[int, bytes] = {}
        """What the buffers of configurations and arguments hold during their callbacks."""
        self.call_response: Message | None = None
        self.grpc_message: bytes | None = None
        self.grpc_metadata: Pairs | None = None
        self.grpc_status: tuple[int, bytes] | None = None

    # Logs and time

    def log(self, level: int, message: bytes) -> int:
        if level >= self._world.log_level:
            self._world.logs.append(LogLine(level, message.decode("utf-8", "replace"), self._worker.number))
        return Status.OK

    def get_log_level(self) -> int | None:
        return int(self._world.log_level)

    def now_nanoseconds(self) -> int:
        return self._world.now

    def set_tick_period(self, milliseconds: int) -> int:
        self._worker.set_tick(self._root_id(), milliseconds)
        return Status.OK

    # Headers

    def get_header(self, map_type: int, name: bytes) -> bytes | None:
        for key, value in self._map(map_type) or ():
            if key == name:
                return value
        return None

    def get_header_pairs(self, map_type: int) -> bytes | None:
        found = self._map(map_type)
        return None if found is None else pairs.encode(found)

    def get_header_map_size(self, map_type: int) -> int | None:
        found = self._map(map_type)
        return None if found is None else sum(len(name) + len(value) for name, value in found)

    def set_header_pairs(self, map_type: int, encoded: bytes) -> int:
        found = self._map(map_type, change=True)
        if found is None:
            return Status.BAD_ARGUMENT
        found[:] = [(name.lower(), value) for name, value in pairs.decode(encoded)]
        return Status.OK

    def add_header(self, map_type: int, name: bytes, value: bytes) -> int:
        found = self._map(map_type, change=True)
        if found is None:
            return Status.BAD_ARGUMENT
        found.append((name.lower(), value))
        return Status.OK

    def replace_header(self, map_type: int, name: bytes, value: bytes) -> int:
        found = self._map(map_type, change=True)
        if found is None:
            return Status.BAD_ARGUMENT
        name = name.lower()
        place = next((index for index, (key, _) in enumerate(found) if key == name), len(found))
        found[:] = [pair for pair in found if pair[0] != name]
        found.insert(place, (name, value))
        return Status.OK

    def remove_header(self, map_type: int, name: bytes) -> int:
        found = self._map(map_type, change=True)
        if found is None:
            return Status.BAD_ARGUMENT
        found[:] = [pair for pair in found if pair[0] != name.lower()]
        return Status.OK

    # Properties

    def get_property(self, path: bytes) -> bytes | None:
        stream = self._stream()
        if stream is not None:
            if path in stream.properties:
                return stream.properties[path]
            known = _stream_property(stream, path)
            if known is not None:
                return known
        return self._worker.properties.get(path)

    def set_property(self, path: bytes, value: bytes) -> int:
        stream = self._stream()
        if stream is None:
            return Status.NOT_FOUND
        stream.properties[path] = value
        return Status.OK

    # Bodies

    def get_buffer(self, buffer_type: int, start: int, max_size: int) -> bytes | None:
        content = self._buffer(buffer_type)
        return None if content is None else bytes(content[start : start + max_size])

    def get_buffer_status(self, buffer_type: int) -> tuple[int, int] | None:
        content = self._buffer(buffer_type)
        return None if content is None else (len(content), 0)

    def set_buffer(self, buffer_type: int, start: int, size: int, value: bytes) -> int:
        content = self._buffer(buffer_type)
        if not isinstance(content, bytearray):
            return Status.BAD_ARGUMENT
        if start == 0:
            content[:size] = value
        elif start >= len(content):
            content += value
        else:
            return Status.BAD_ARGUMENT
        return Status.OK

    # What workers share

    def get_shared_data(self, key: bytes) -> tuple[bytes, int] | None:
        return self._world.shared_data.get(key)

    def set_shared_data(self, key: bytes, value: bytes, cas: int) -> int:
        return self._world.write(key, value, cas)

    def register_shared_queue(self, name: bytes) -> int | None:
        return self._world.register_queue(name, (self._worker, self._root_id()))

    def resolve_shared_queue(self, vm_id: bytes, name: bytes) -> int | None:
        return self._world.queue_ids.get((vm_id, name))

    def enqueue_shared_queue(self, queue_id: int, value: bytes) -> int:
        queue = self._world.queues.get(queue_id)
        if queue is None:
            return Status.NOT_FOUND
        queue.messages.append(value)
        if queue.reader is not None:
            worker, root_id = queue.reader
            self._world.post(lambda: worker.callback("on_queue_ready", root_id, queue_id))
        return Status.OK

    def dequeue_shared_queue(self, queue_id: int) -> bytes | None:
        queue = self._world.queues.get(queue_id)
        return queue.messages.popleft() if queue is not None and queue.messages else None

    # Metrics

    def define_metric(self, metric_type: int, name: bytes) -> int | None:
        return self._world.define_metric(metric_type, name.decode("utf-8", "replace"))

    def increment_metric(self, metric_id: int, offset: int) -> int:
        definition = self._world.metric_definition(metric_id)
        if definition is None:
            return Status.NOT_FOUND
        metric_type, name = definition
        value = self._world.metrics[name]
        if isinstance(value, list) or (metric_type == MetricType.COUNTER and offset <= 0):
            return Status.BAD_ARGUMENT
        self._world.metrics[name] = value + offset
        return Status.OK

    def record_metric(self, metric_id: int, value: int) -> int:
        definition = self._world.metric_definition(metric_id)
        if definition is None:
            return Status.NOT_FOUND
        if not 0 <= value < _LARGEST_VALUE:
            return Status.BAD_ARGUMENT
        metric_type, name = definition
        found = self._world.metrics[name]
        if isinstance(found, list):
            found.append(value)
        else:
            # Envoy adds to a counter that is recorded.
            self._world.metrics[name] = found + value if metric_type == MetricType.COUNTER else value
        return Status.OK

    def get_metric(self, metric_id: int) -> int | None:
        definition = self._world.metric_definition(metric_id)
        value = None if definition is None else self._world.metrics[definition[1]]
        return value if isinstance(value, int) else None

    # Calls

    def http_call(self, cluster: bytes, headers: bytes, body: bytes, trailers: bytes, timeout_milliseconds: int) -> tuple[int, int]:
        name = cluster.decode("utf-8", "replace")
        request = Message(HeaderList(pairs.decode(headers)), body, HeaderList(pairs.decode(trailers)))
        complete = {b":method", b":path", b":authority"} <= set(request.headers)
        if not complete or not self._knows(name):
            return Status.BAD_ARGUMENT, 0
        call = SimulatedHttpCall(
            self._worker, self._root_id(), self._world.next_token(), name, self._deadline(timeout_milliseconds), request
        )
        return self._began(call)

    def grpc_call(
        self, service: bytes, service_name: bytes, method_name: bytes, initial_metadata: bytes, message: bytes, timeout_milliseconds: int
    ) -> tuple[int, int]:
        status, call = self._grpc(
            service, service_name, method_name, initial_metadata, self._deadline(timeout_milliseconds), streaming=False
        )
        if call is None:
            return status, 0
        call.sent.append(message)
        call.half_closed = True
        return self._began(call)

    def grpc_stream(self, service: bytes, service_name: bytes, method_name: bytes, initial_metadata: bytes) -> tuple[int, int]:
        status, call = self._grpc(service, service_name, method_name, initial_metadata, None, streaming=True)
        return (status, 0) if call is None else self._began(call)

    def grpc_send(self, token: int, message: bytes, end_stream: int) -> int:
        call = self._grpc_call(token)
        if call is None:
            return Status.NOT_FOUND
        if call.half_closed:
            return Status.BAD_ARGUMENT
        call.sent.append(message)
        call.half_closed = bool(end_stream)
        return Status.OK

    def grpc_cancel(self, token: int) -> int:
        call = self._grpc_call(token)
        if call is None:
            return Status.NOT_FOUND
        call.cancelled = True
        self._world.calls.remove(call)
        return Status.OK

    def grpc_close(self, token: int) -> int:
        call = self._grpc_call(token)
        if call is None:
            return Status.NOT_FOUND
        call.half_closed = True
        return Status.OK

    def get_status(self) -> tuple[int, bytes] | None:
        return self.grpc_status

    def call_foreign_function(self, name: bytes, arguments: bytes) -> tuple[int, bytes]:
        function = self._foreign_functions.get(name.decode("utf-8", "replace"))
        return (Status.NOT_FOUND, b"") if function is None else (Status.OK, function(arguments))

    # Streams

    def send_local_response(self, status: int, details: bytes, body: bytes, headers: bytes, grpc_status: int) -> int:
        stream = self._stream()
        if stream is None or stream.local_response_held:
            return Status.BAD_ARGUMENT
        stream.local_response_held = True
        decoded = [(name.lower(), value) for name, value in pairs.decode(headers)]
        self._worker.after(lambda: stream.answer(status, details.decode("utf-8", "replace"), body, decoded, grpc_status))
        return Status.OK

    def continue_stream(self, stream_type: int) -> int:
        stream = self._stream()
        if stream is None:
            return Status.BAD_ARGUMENT
        self._worker.after(stream.half(StreamType(stream_type)).proceed)
        return Status.OK

    def close_stream(self, stream_type: int) -> int:
        stream = self._stream()
        if stream is None:
            return Status.BAD_ARGUMENT
        self._worker.after(stream.reset)
        return Status.OK

    def set_effective_context(self, context_id: int) -> int:
        if not self._worker.knows(context_id):
            return Status.BAD_ARGUMENT
        self.context_id = context_id
        return Status.OK

    def done(self) -> int:
        return Status.OK if self._worker.done(self.context_id) else Status.NOT_FOUND

    # Its own

    def _stream(self) -> SimulatedStream | None:
        return self._worker.streams.get(self.context_id)

    def _root_id(self) -> int:
        stream = self._stream()
        return self.context_id if stream is None else stream.root_id

    def _knows(self, cluster: str) -> bool:
        return self._world.clusters is None or cluster in self._world.clusters

    def _deadline(self, milliseconds: int) -> int:
        return self._world.now + milliseconds * 1_000_000

    def _began(self, call: SimulatedCall) -> tuple[int, int]:
        self._world.calls.append(call)
        return Status.OK, call.token

    def _grpc(
        self, service: bytes, service_name: bytes, method_name: bytes, metadata: bytes, deadline: int | None, *, streaming: bool
    ) -> tuple[Status, SimulatedGrpcCall | None]:
        cluster = _cluster_of(service)
        if not self._knows(cluster):
            return Status.PARSE_FAILURE, None
        return Status.OK, SimulatedGrpcCall(
            self._worker,
            self._root_id(),
            self._world.next_token(),
            cluster,
            deadline,
            service=service_name.decode(),
            method=method_name.decode(),
            metadata=HeaderList(pairs.decode(metadata)),
            streaming=streaming,
        )

    def _grpc_call(self, token: int) -> SimulatedGrpcCall | None:
        return next((call for call in self._world.calls if call.token == token and isinstance(call, SimulatedGrpcCall)), None)

    def _map(self, map_type: int, *, change: bool = False) -> Pairs | None:
        answer = self.call_response
        if map_type == MapType.HTTP_CALL_RESPONSE_HEADERS:
            return None if answer is None or change else answer.headers.items()
        if map_type == MapType.HTTP_CALL_RESPONSE_TRAILERS:
            return None if answer is None or change else answer.trailers.items()
        if map_type in (MapType.GRPC_CALL_INITIAL_METADATA, MapType.GRPC_CALL_TRAILING_METADATA):
            return None if change else self.grpc_metadata
        stream = self._stream()
        if stream is None:
            return None
        half = stream.request if map_type in (MapType.REQUEST_HEADERS, MapType.REQUEST_TRAILERS) else stream.reply
        headers = map_type in (MapType.REQUEST_HEADERS, MapType.RESPONSE_HEADERS)
        if stream.logging:
            return None if change else (half.headers if headers else half.trailers)
        return _available(half, headers=headers)

    def _buffer(self, buffer_type: int) -> bytes | bytearray | None:
        if buffer_type == BufferType.HTTP_CALL_RESPONSE_BODY:
            return None if self.call_response is None else self.call_response.body
        if buffer_type == BufferType.GRPC_CALL_MESSAGE:
            return self.grpc_message
        if buffer_type in self.configuration:
            return self.configuration[buffer_type]
        stream = self._stream()
        if stream is None or buffer_type not in (BufferType.REQUEST_BODY, BufferType.RESPONSE_BODY):
            return None
        half = stream.request if buffer_type == BufferType.REQUEST_BODY else stream.reply
        return half.buffer if half.at in ("body", "trailers") else None


def _available(half: Half, *, headers: bool) -> Pairs | None:
    """Headers are there until they pass, trailers too."""
    if headers:
        return half.headers if half.at == "headers" else None
    return half.trailers if half.at == "trailers" else None


def _stream_property(stream: SimulatedStream, path: bytes) -> bytes | None:
    """The attributes that every request has."""
    side, _, name = path.partition(b"\0")
    half = stream.request if side == b"request" else stream.reply if side == b"response" else None
    if half is None:
        return None
    headers = dict(half.headers or ())
    if name.startswith(b"headers\0"):
        return headers.get(name[8:])
    if side == b"request":
        return headers.get({b"path": b":path", b"method": b":method", b"host": b":authority", b"scheme": b":scheme"}.get(name, name))
    if name == b"code" and half.passed is not None:
        return half.passed.status.to_bytes(8, "little")
    return None


def _cluster_of(service: bytes) -> str:
    """Out of an encoded `GrpcService` with `envoy_grpc`; the text as it is when it is none."""
    inner = _field_one(service)
    name = None if inner is None else _field_one(inner)
    return (service if name is None else name).decode("utf-8", "replace")


def _field_one(message: bytes) -> bytes | None:
    if message[:1] != b"\n":
        return None
    length = shift = 0
    for index, byte in enumerate(message[1:], 2):
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return message[index : index + length] if index + length <= len(message) else None
    return None
