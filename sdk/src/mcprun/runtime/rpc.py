"""gRPC servers, channels and addresses, with one message limit and one set of options for every service."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from mcprun.descriptors import POOL
from mcprun.runtime.telemetry import Telemetry

ResultT = TypeVar("ResultT")

ENVELOPE_BYTES = 1024 * 1024
"""What a message between services may be larger than max_message_bytes: ids, names and status around the payloads."""

_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)


def options(max_message_bytes: int) -> list[tuple[str, int]]:
    """Channel and server options. The largest message is `max_message_bytes` plus `ENVELOPE_BYTES`."""
    limit = max_message_bytes + ENVELOPE_BYTES
    return [
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", limit),
        ("grpc.so_reuseport", 0),
        *_KEEPALIVE,
    ]


def channel(address: str, *, max_message_bytes: int) -> grpc.aio.Channel:
    """A channel to another service at `unix:PATH` or HOST:PORT. It reconnects by itself, at most a second apart."""
    return grpc.aio.insecure_channel(
        address,
        options=[
            *options(max_message_bytes),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ],
    )


class Health:
    """The serving state that grpc.health.v1 answers, for the whole process (the empty name) and for named services."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()
        self.serving = False
        """What the whole process answers."""

    async def set(self, serving: bool, service: str = "") -> None:
        """Sets one state; watchers are told."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        if not service:
            self.serving = serving
        await self.servicer.set(service, status)


async def server(
    address: str,
    *,
    max_message_bytes: int,
    health_state: Health,
    services: Sequence[str],
    streams: Sequence[str] = (),
    telemetry: Telemetry | None = None,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
) -> grpc.aio.Server:
    """A server bound to `address` with health and reflection, not yet started.

    `services` are the full names that reflection lists. When traces are on, every call gets a span, but for `streams`: the
    paths of methods that write their answers with `context.write`, which the instrumentation cannot wrap. (A generator that is
    cut off at a yield ends only when it is collected as garbage; a coroutine ends at once.)
    Raises RuntimeError when the address cannot be bound.
    """
    chain = list(interceptors)
    if telemetry is not None and telemetry.enabled:
        from opentelemetry.instrumentation.grpc import aio_server_interceptor, filters

        left_out = filters.any_of(filters.health_check(), *map(filters.full_method_name, streams))
        chain.insert(0, aio_server_interceptor(tracer_provider=telemetry.provider, filter_=filters.negate(left_out)))
    instance = grpc.aio.server(options=options(max_message_bytes), interceptors=chain)
    health_pb2_grpc.add_HealthServicer_to_server(health_state.servicer, instance)
    await health_state.set(False)
    reflection.enable_server_reflection((*services, reflection.SERVICE_NAME), instance, pool=POOL)
    instance.add_insecure_port(address)
    return instance


async def apart(attempt: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Awaits one life of a stream in a task of its own, so that its end and the cancellation of the caller cannot be taken for
    each other. Raises ConnectionError when the life ended as if it had been cancelled, CancelledError only when the caller is.

    Without it: grpc.aio raises CancelledError also for a call that was cut off; a TaskGroup whose children fail while its own
    task is cancelled raises their errors in place of that; and on Python 3.11 it leaves its task counting as being cancelled.
    """
    life = asyncio.ensure_future(attempt)
    try:
        await asyncio.wait((life,))
    except asyncio.CancelledError:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        raise
    if life.cancelled():
        raise ConnectionError("the call was cut off")
    return life.result()


def split_host_port(address: str) -> tuple[str, int]:
    """HOST and PORT of HOST:PORT, where an IPv6 host stands in brackets. Raises ValueError."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"an address must be HOST:PORT, got {address!r}")
    return host.strip("[]"), int(port)
