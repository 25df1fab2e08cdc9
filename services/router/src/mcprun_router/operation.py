"""One operation of a caller: timed, traced, and with every fault turned into a MeshError."""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
from opentelemetry.trace import SpanKind, Status, StatusCode

from mcprun.errors import Internal, MeshError
from mcprun.runtime import logs
from mcprun.runtime.telemetry import Telemetry, traceparent_of
from mcprun_router.dataplane import Caller
from mcprun_router.metrics import request_seconds

_log = logs.get_logger(__name__)

_OK = grpc.StatusCode.OK.name
_CANCELLED = grpc.StatusCode.CANCELLED.name

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


class Operations:
    """Runs operations. `telemetry` makes a span of each when traces are on."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    async def run(
        self,
        protocol: str,
        name: str,
        method: Callable[[RequestT, Caller], Awaitable[AnswerT]],
        request: RequestT,
        caller: Caller,
    ) -> AnswerT:
        """Runs one operation. `name` must come from a closed set: it becomes a label of a metric.

        Raises MeshError only, or CancelledError when the caller left.
        """
        started = time.perf_counter()
        code = _OK
        try:
            if self._telemetry.enabled:
                return await self._traced(protocol, name, method, request, caller)
            return await method(request, caller)
        except MeshError as error:
            code = error.code.name
            raise
        except asyncio.CancelledError:
            code = _CANCELLED
            raise
        except Exception as fault:
            code = Internal.code.name
            _log.error("an operation failed", operation=name, exc_info=True, **logs.trace_fields(caller.traceparent))
            raise Internal(f"the router failed at {name}; its log says how") from fault
        finally:
            request_seconds(protocol, name, code).observe(time.perf_counter() - started)

    async def _traced(
        self,
        protocol: str,
        name: str,
        method: Callable[[RequestT, Caller], Awaitable[AnswerT]],
        request: RequestT,
        caller: Caller,
    ) -> AnswerT:
        with self._telemetry.span(f"router.{name}", caller.traceparent, kind=SpanKind.SERVER) as span:
            span.set_attribute("rpc.system", protocol)
            try:
                return await method(request, dataclasses.replace(caller, traceparent=traceparent_of(span)))
            except MeshError as error:
                span.set_status(Status(StatusCode.ERROR, error.message))
                raise
