"""gRPC without a bridge: for callers inside the mesh, and for streams."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from mcprun.errors import MeshError
from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun_router.dataplane import Caller, Dataplane
from mcprun_router.methods import SERVICE, STREAM_INFER, Method, Methods, stream_infer
from mcprun_router.operation import Operations

Context = grpc.aio.ServicerContext[Any, Any]

_MAX_IN_FLIGHT = 64
"""Requests of one ModelStreamInfer stream that may run at the same time; the next one is read once one is answered."""


class InferenceHandler(grpc.GenericRpcHandler):
    """Serves every method of the protocol. Messages stay bytes here: the core parses what it needs."""

    def __init__(self, dataplane: Dataplane, methods: Methods, operations: Operations) -> None:
        self._dataplane = dataplane
        self._operations = operations
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            path: grpc.unary_unary_rpc_method_handler(self._unary(path.rpartition("/")[2], method))
            for path, method in methods.table.items()
        }
        self._handlers[STREAM_INFER] = grpc.stream_stream_rpc_method_handler(
            self._stream, response_serializer=oip.ModelStreamInferResponse.SerializeToString
        )

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """The handler of a method, None for methods of other services."""
        return self._handlers.get(handler_call_details.method)

    def _unary(self, name: str, method: Method) -> Callable[[bytes, Context], Awaitable[bytes]]:
        async def handle(request: bytes, context: Context) -> bytes:
            try:
                return await self._operations.run("grpc", name, method, request, _caller(context))
            except MeshError as error:
                await _abort(context, error)

        return handle

    async def _stream(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Answers in the order of the requests, while up to `_MAX_IN_FLIGHT` of them run."""
        caller = _caller(context)
        room = asyncio.Semaphore(_MAX_IN_FLIGHT)
        running: set[asyncio.Task[oip.ModelStreamInferResponse]] = set()
        in_order: asyncio.Queue[asyncio.Task[oip.ModelStreamInferResponse] | None] = asyncio.Queue()

        async def method(body: bytes, caller: Caller) -> oip.ModelStreamInferResponse:
            return await stream_infer(self._dataplane, body, caller)

        async def read() -> None:
            try:
                async for body in requests:
                    await room.acquire()
                    task = asyncio.create_task(self._operations.run("grpc", "ModelStreamInfer", method, body, caller))
                    running.add(task)
                    in_order.put_nowait(task)
            finally:
                in_order.put_nowait(None)

        reader = asyncio.create_task(read())
        try:
            while (task := await in_order.get()) is not None:
                await context.write(await task)
                running.discard(task)
                room.release()
        except MeshError as error:
            await _abort(context, error)
        finally:
            left = [reader, *running]
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)


SERVICES = (SERVICE,)
STREAMS = (STREAM_INFER,)


def _caller(context: Context) -> Caller:
    values: dict[str, str] = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    return Caller(
        timeout=context.time_remaining(),
        routing=values.get("x-routing", ""),
        traceparent=values.get("traceparent", ""),
        tenant=values.get("x-tenant", ""),
    )


async def _abort(context: Context, error: MeshError) -> NoReturn:
    trailers = (("retry-after", str(max(1, round(error.retry_after)))),) if error.retry_after is not None else ()
    await context.abort(error.code, error.brief, trailers)
    raise AssertionError("abort always raises")
