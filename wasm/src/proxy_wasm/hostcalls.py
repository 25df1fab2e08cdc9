# ruff: noqa: D102, D403 - the names of the ABI say it, and gRPC is spelled so
"""The seam between the SDK and its host: every hostcall of proxy-wasm 0.2.1 that Envoy has, as plain functions of bytes and numbers.

Two things implement it: the functions that the build makes out of the module's imports, and the host of `proxy_wasm.testing`.
The names and the order of arguments are those of the build's interface description (`build/host.wit`), with underscores.

Conventions: what is absent, or cannot be had in this callback, is None. What only succeeds or fails answers a `Status` number.
Maps are encoded as the ABI has them (see `proxy_wasm.pairs`). Times are in nanoseconds or milliseconds, as the names say.
"""

from typing import Protocol

from proxy_wasm.binding import bound


class Host(Protocol):
    """The hostcalls."""

    def log(self, level: int, message: bytes) -> int: ...
    def get_log_level(self) -> int | None: ...

    def get_header(self, map_type: int, name: bytes) -> bytes | None:
        """The first value of that name, as the host finds it."""

    def get_header_pairs(self, map_type: int) -> bytes | None: ...
    def get_header_map_size(self, map_type: int) -> int | None:
        """The size of all names and values together, in bytes."""

    def set_header_pairs(self, map_type: int, pairs: bytes) -> int: ...
    def add_header(self, map_type: int, name: bytes, value: bytes) -> int: ...
    def replace_header(self, map_type: int, name: bytes, value: bytes) -> int: ...
    def remove_header(self, map_type: int, name: bytes) -> int: ...

    def get_property(self, path: bytes) -> bytes | None:
        """The parts of the path are joined by NUL."""

    def set_property(self, path: bytes, value: bytes) -> int: ...

    def get_buffer(self, buffer_type: int, start: int, max_size: int) -> bytes | None: ...
    def get_buffer_status(self, buffer_type: int) -> tuple[int, int] | None:
        """The length in bytes, and flags."""

    def set_buffer(self, buffer_type: int, start: int, size: int, value: bytes) -> int:
        """Replaces `size` bytes from `start` on. `start` 0 and `size` 0 puts it before, `start` at the end puts it behind."""

    def get_shared_data(self, key: bytes) -> tuple[bytes, int] | None:
        """The value and its CAS number."""

    def set_shared_data(self, key: bytes, value: bytes, cas: int) -> int:
        """CAS_MISMATCH when `cas` is not 0 and not the number of what is there. A key that is missing is inserted whatever `cas` says."""

    def register_shared_queue(self, name: bytes) -> int | None: ...
    def resolve_shared_queue(self, vm_id: bytes, name: bytes) -> int | None: ...
    def enqueue_shared_queue(self, queue_id: int, value: bytes) -> int: ...
    def dequeue_shared_queue(self, queue_id: int) -> bytes | None: ...

    def define_metric(self, metric_type: int, name: bytes) -> int | None: ...
    def increment_metric(self, metric_id: int, offset: int) -> int: ...
    def record_metric(self, metric_id: int, value: int) -> int: ...
    def get_metric(self, metric_id: int) -> int | None: ...

    def http_call(self, cluster: bytes, headers: bytes, body: bytes, trailers: bytes, timeout_milliseconds: int) -> tuple[int, int]:
        """Status, and the token of the call. `headers` and `trailers` are encoded maps."""

    def grpc_call(
        self, service: bytes, service_name: bytes, method_name: bytes, initial_metadata: bytes, message: bytes, timeout_milliseconds: int
    ) -> tuple[int, int]:
        """Status, and the token of the call. `service` is an encoded `envoy.config.core.v3.GrpcService`, or a cluster's name."""

    def grpc_stream(self, service: bytes, service_name: bytes, method_name: bytes, initial_metadata: bytes) -> tuple[int, int]:
        """Status, and the token of the stream."""

    def grpc_send(self, token: int, message: bytes, end_stream: int) -> int: ...
    def grpc_cancel(self, token: int) -> int: ...
    def grpc_close(self, token: int) -> int: ...
    def get_status(self) -> tuple[int, bytes] | None:
        """gRPC status and message of the call that ended, within on_grpc_close."""

    def send_local_response(self, status: int, details: bytes, body: bytes, headers: bytes, grpc_status: int) -> int:
        """`headers` is an encoded map. `grpc_status` -1: none."""

    def continue_stream(self, stream_type: int) -> int: ...
    def close_stream(self, stream_type: int) -> int: ...
    def set_effective_context(self, context_id: int) -> int: ...
    def done(self) -> int: ...

    def now_nanoseconds(self) -> int:
        """Since the Unix epoch."""

    def set_tick_period(self, milliseconds: int) -> int: ...

    def call_foreign_function(self, name: bytes, arguments: bytes) -> tuple[int, bytes]:
        """Status, and what it answered."""


def host() -> Host:
    """The hostcalls themselves, in bytes and numbers, of the worker that asks: for what every request does and that has to be quick.

    To be asked for in `on_configure` or later, and kept by the root context. They apply to the stream whose callback runs.
    """
    return bound.host


CALLBACKS: dict[str, tuple[str, ...]] = {
    # name: names of arguments; all are unsigned 32-bit numbers
    "on_vm_start": ("context_id", "configuration_size"),
    "on_configure": ("context_id", "configuration_size"),
    "on_context_create": ("context_id", "parent_id"),
    "on_request_headers": ("context_id", "count", "end_of_stream"),
    "on_request_body": ("context_id", "size", "end_of_stream"),
    "on_request_trailers": ("context_id", "count"),
    "on_response_headers": ("context_id", "count", "end_of_stream"),
    "on_response_body": ("context_id", "size", "end_of_stream"),
    "on_response_trailers": ("context_id", "count"),
    "on_tick": ("context_id",),
    "on_queue_ready": ("context_id", "queue_id"),
    "on_http_call_response": ("context_id", "token", "header_count", "body_size", "trailer_count"),
    "on_grpc_receive_initial_metadata": ("context_id", "token", "count"),
    "on_grpc_receive": ("context_id", "token", "size"),
    "on_grpc_receive_trailing_metadata": ("context_id", "token", "count"),
    "on_grpc_close": ("context_id", "token", "status"),
    "on_foreign_function": ("context_id", "function_id", "arguments_size"),
    "on_done": ("context_id",),
    "on_log": ("context_id",),
    "on_delete": ("context_id",),
}
"""The callbacks of the ABI: `proxy_` before each name is what the module exports."""

ANSWERING = frozenset(
    {
        "on_vm_start",
        "on_configure",
        "on_request_headers",
        "on_request_body",
        "on_request_trailers",
        "on_response_headers",
        "on_response_body",
        "on_response_trailers",
        "on_done",
    }
)
"""The callbacks that answer a number: an `Action`, or 1 for success."""
