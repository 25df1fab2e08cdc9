"""Whether the host's kvcache answers."""

import asyncio
from collections.abc import Callable

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mcprun.errors import MeshError
from mcprun.runtime import rpc
from mcprun.runtime.breaker import Breaker

_PERIOD_SECONDS = 0.5
_TIMEOUT_SECONDS = 1.0


class KVCacheWatch:
    """Asks the kvcache for its health, through a circuit breaker. `report` gets "ok" or "unreachable" when that changes."""

    def __init__(self, address: str, *, max_message_bytes: int, report: Callable[[str], None]) -> None:
        self._channel = rpc.channel(address, max_message_bytes=max_message_bytes)
        self._stub = health_pb2_grpc.HealthStub(self._channel)
        self._breaker = Breaker("kvcache", fail_max=3, reset_seconds=1.0)
        self._report = report

    async def run(self) -> None:
        """Asks until it is cancelled."""
        known = ""
        try:
            while True:
                state = "ok" if await self._serving() else "unreachable"
                if state != known:
                    known = state
                    self._report(state)
                await asyncio.sleep(_PERIOD_SECONDS)
        finally:
            await self._channel.close()

    async def _serving(self) -> bool:
        try:
            with self._breaker.guard():
                answer = await self._stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_SECONDS)
        except (grpc.aio.AioRpcError, MeshError):
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
