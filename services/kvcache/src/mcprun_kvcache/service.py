"""The kvcache's gRPC service."""

from typing import Any, NoReturn

import grpc.aio

from mcprun.errors import InvalidInput, MeshError
from mcprun.protocol.v1 import kvcache_pb2, kvcache_pb2_grpc
from mcprun_kvcache.arena import SharedFile
from mcprun_kvcache.geometry import PAGE_BYTES, Geometry
from mcprun_kvcache.store import Store, StoredPool
from mcprun_kvcache.table import LAYOUT_VERSION

Context = grpc.aio.ServicerContext[Any, Any]

SERVICES = ("mcprun.v1.KVCache",)


class KVCacheService(kvcache_pb2_grpc.KVCacheServicer):
    """What workers call. `max_ttl` is the longest lease, in nanoseconds."""

    def __init__(self, store: Store, arena: SharedFile, *, max_ttl: int) -> None:
        self._store = store
        self._arena = arena
        self._max_ttl = max_ttl

    async def DescribeArena(self, request: kvcache_pb2.DescribeArenaRequest, context: Context) -> kvcache_pb2.Arena:
        """Where the arena is."""
        return kvcache_pb2.Arena(
            path=str(self._arena.path),
            byte_size=self._arena.byte_size,
            layout_version=LAYOUT_VERSION,
            page_bytes=PAGE_BYTES,
            device=self._arena.device,
            pools=[_pool(stored) for stored in self._store.pools.values()],
        )

    async def CreatePool(self, request: kvcache_pb2.CreatePoolRequest, context: Context) -> kvcache_pb2.Pool:
        """Makes a pool."""
        told = request.geometry
        try:
            slots = {entry.bucket_tokens: entry.slots for entry in request.slots}
            if len(slots) != len(request.slots):
                raise InvalidInput("slots: each bucket at most once expected, got one twice")
            geometry = Geometry(told.layers, told.kv_heads, told.head_size, told.datatype)
            stored = self._store.create(request.name, geometry, slots, max_slots_per_tenant=request.max_slots_per_tenant)
        except MeshError as error:
            await _abort(context, error)
        return _pool(stored)

    async def DeletePool(self, request: kvcache_pb2.DeletePoolRequest, context: Context) -> kvcache_pb2.DeletePoolResponse:
        """Removes a pool."""
        try:
            self._store.delete(request.name)
        except MeshError as error:
            await _abort(context, error)
        return kvcache_pb2.DeletePoolResponse()

    async def Lease(self, request: kvcache_pb2.LeaseRequest, context: Context) -> kvcache_pb2.SlotLease:
        """Leases a slot."""
        try:
            lease, place = self._store.lease(
                request.pool, tokens=request.tokens, tenant=request.tenant, owner=request.owner, ttl=self._ttl(request.ttl_ns)
            )
        except MeshError as error:
            await _abort(context, error)
        return kvcache_pb2.SlotLease(
            lease_id=lease.lease_id, bucket_tokens=lease.bucket, slot=lease.slot, offset=place.offset, byte_size=place.byte_size
        )

    async def Renew(self, request: kvcache_pb2.RenewRequest, context: Context) -> kvcache_pb2.RenewResponse:
        """Extends leases."""
        try:
            lost = self._store.renew(list(request.lease_ids), self._ttl(request.ttl_ns))
        except MeshError as error:
            await _abort(context, error)
        return kvcache_pb2.RenewResponse(lost=lost)

    async def Release(self, request: kvcache_pb2.ReleaseRequest, context: Context) -> kvcache_pb2.ReleaseResponse:
        """Ends leases."""
        return kvcache_pb2.ReleaseResponse(released=self._store.release(list(request.lease_ids)))

    async def GetStats(self, request: kvcache_pb2.GetKVCacheStatsRequest, context: Context) -> kvcache_pb2.KVCacheStats:
        """What the arena holds."""
        return kvcache_pb2.KVCacheStats(
            buckets=[
                kvcache_pb2.BucketStats(
                    pool=name,
                    bucket_tokens=bucket,
                    slots=slots,
                    leased=stored.pool.leased(bucket),
                    committed_bytes=self._store.committed_bytes(name, bucket),
                )
                for name, stored in self._store.pools.items()
                for bucket, slots in stored.pool.slots.items()
            ],
            capacity_bytes=self._arena.byte_size,
            reserved_bytes=self._store.reserved_bytes,
            committed_bytes=self._arena.committed_in_all(),
            lapsed_leases=self._store.lapsed,
        )

    async def CheckIntegrity(self, request: kvcache_pb2.CheckIntegrityRequest, context: Context) -> kvcache_pb2.CheckIntegrityResponse:
        """Checks every invariant."""
        return kvcache_pb2.CheckIntegrityResponse(problems=self._store.check_integrity())

    def _ttl(self, ttl_ns: int) -> int:
        if not 1 <= ttl_ns <= self._max_ttl:
            raise InvalidInput(f"ttl_ns: 1 to {self._max_ttl} (max_ttl_seconds) expected, got {ttl_ns}")
        return ttl_ns


def _pool(stored: StoredPool) -> kvcache_pb2.Pool:
    geometry = stored.pool.geometry
    return kvcache_pb2.Pool(
        name=stored.record.name,
        geometry=kvcache_pb2.Geometry(
            layers=geometry.layers, kv_heads=geometry.kv_heads, head_size=geometry.head_size, datatype=geometry.datatype
        ),
        buckets=[
            kvcache_pb2.Bucket(
                bucket_tokens=bucket, slots=slots, offset=stored.places[bucket].offset, slot_bytes=geometry.slot_bytes(bucket)
            )
            for bucket, slots in stored.pool.slots.items()
        ],
        max_slots_per_tenant=stored.pool.max_slots_per_tenant,
    )


async def _abort(context: Context, error: MeshError) -> NoReturn:
    await context.abort(error.code, error.brief)
    raise AssertionError("abort always raises")
