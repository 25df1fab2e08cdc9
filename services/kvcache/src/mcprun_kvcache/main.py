"""The kvcache's process."""

import asyncio
import os
import time
from pathlib import Path

from mcprun.errors import FailedPrecondition
from mcprun.protocol.v1 import kvcache_pb2_grpc
from mcprun.runtime import logs, process, rpc
from mcprun.runtime.telemetry import Telemetry
from mcprun_kvcache import metrics
from mcprun_kvcache.arena import SharedFile
from mcprun_kvcache.service import SERVICES, KVCacheService
from mcprun_kvcache.settings import KVCacheSettings
from mcprun_kvcache.store import Store

_log = logs.get_logger(__name__)

_TICK_SECONDS = 0.25
_UNNAMED = Path("/dev/shm")  # noqa: S108 - where Linux keeps shared memory
_PREFIX = "mcprun-kv-"


async def serve(settings: KVCacheSettings, telemetry: Telemetry, stop: process.Stop) -> None:
    """Serves until `stop` is requested.

    An arena whose path was named outlives the process; one that was not is removed at the end.
    """
    if settings.arena_path is None:
        remove_orphans(_UNNAMED)
    path = settings.arena_path or _UNNAMED / f"{_PREFIX}{os.getpid()}"
    arena = SharedFile(path, settings.arena_bytes)
    # The clock of this boot: it goes on over a restart of the process, and a named arena in memory does not outlive the boot.
    store = Store(arena, clock=time.monotonic_ns)
    metrics.capacity_bytes.set(arena.byte_size)
    metrics.reserved_bytes.set_function(lambda: store.reserved_bytes)
    metrics.committed_bytes.set_function(arena.committed_in_all)
    metrics.leased_slots.set_function(lambda: sum(len(stored.pool.leases) for stored in store.pools.values()))
    health = rpc.Health()
    server = await rpc.server(
        settings.grpc_address,
        max_message_bytes=settings.max_message_bytes,
        health_state=health,
        services=SERVICES,
        telemetry=telemetry,
    )
    service = KVCacheService(store, arena, max_ttl=int(settings.max_ttl_seconds * 1e9))
    kvcache_pb2_grpc.add_KVCacheServicer_to_server(service, server)
    await server.start()
    await health.set(True)
    _log.info("serving", address=settings.grpc_address, arena=str(path), pools=len(store.pools))
    async with asyncio.TaskGroup() as background:
        expiry = background.create_task(_expire(store))
        await stop.wait()
        await health.set(False)
        await server.stop(grace=min(settings.drain_seconds, 5))
        expiry.cancel()
    arena.close(remove=settings.arena_path is None)


def remove_orphans(folder: Path) -> None:
    """Removes unnamed arenas whose process was killed: their lock is free."""
    for path in folder.glob(f"{_PREFIX}*"):
        try:
            SharedFile(path, 0).close(remove=True)
        except FailedPrecondition:
            continue
        _log.info("removed an arena whose process is gone", arena=str(path))


async def _expire(store: Store) -> None:
    while True:
        ended = store.expire()
        if ended:
            metrics.lapsed.inc(ended)
            _log.warning("leases lapsed", leases=ended)
        await asyncio.sleep(_TICK_SECONDS)


def main() -> None:
    """The console script `mcprun-kvcache`."""
    process.run(KVCacheSettings, serve)
