"""Pools, arena and table together: every change is in the table before anybody is told of it."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from mcprun.errors import AlreadyExists, FailedPrecondition, InvalidInput, NotFound, ResourceExhausted
from mcprun_kvcache.arena import SharedFile
from mcprun_kvcache.geometry import PAGE_BYTES, Geometry
from mcprun_kvcache.pool import Lease, Pool
from mcprun_kvcache.table import DATA_OFFSET, MAX_SLOTS, PoolRecord, Table, name_limit

_MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class Place:
    """Where something lies in the arena, in bytes."""

    offset: int
    byte_size: int


@dataclass(slots=True)
class StoredPool:
    """A pool and where it lies."""

    record: PoolRecord
    pool: Pool
    places: dict[int, Place] = field(default_factory=dict)
    """Where the slots of each bucket lie."""
    first_records: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Lays the buckets out one after another."""
        offset, first = self.record.offset, self.record.first_record
        for bucket, slots in sorted(self.record.slots.items()):
            size = self.pool.geometry.slot_bytes(bucket)
            self.places[bucket] = Place(offset, slots * size)
            self.first_records[bucket] = first
            offset += slots * size
            first += slots

    @property
    def byte_size(self) -> int:
        """The extent of all slots."""
        return sum(place.byte_size for place in self.places.values())

    @property
    def count(self) -> int:
        """The number of all slots."""
        return sum(self.record.slots.values())

    def place(self, lease: Lease) -> Place:
        """Where a lease's slot lies."""
        size = self.pool.geometry.slot_bytes(lease.bucket)
        return Place(self.places[lease.bucket].offset + lease.slot * size, size)

    def record_of(self, lease: Lease) -> int:
        """The number of a lease's record."""
        return self.first_records[lease.bucket] + lease.slot


class Store:
    """The arena's contents. `clock` gives nanoseconds that go on over a restart of this process.

    Raises FailedPrecondition when the file is there and no arena of this layout.
    """

    def __init__(self, arena: SharedFile, *, clock: Callable[[], int]) -> None:
        self._arena = arena
        self._clock = clock
        self._table = Table(arena)
        self.pools: dict[str, StoredPool] = {}
        self.lapsed = 0
        """Leases that lapsed since this process started."""
        if arena.existed:
            self._restore()
        else:
            self._table.write_pools([])

    def create(self, name: str, geometry: Geometry, slots: dict[int, int], *, max_slots_per_tenant: int) -> StoredPool:
        """Makes a pool, or finds the same one. Raises MeshError."""
        if not name or len(name) > _MAX_NAME:
            raise InvalidInput(f"name: 1 to {_MAX_NAME} characters expected, got {len(name)}")
        known = self.pools.get(name)
        if known is not None:
            same = (known.pool.geometry, known.pool.slots, known.pool.max_slots_per_tenant) == (geometry, slots, max_slots_per_tenant)
            if not same:
                raise AlreadyExists(f"pool {name!r} exists with another geometry or other slots")
            return known
        pool = Pool(geometry, slots, max_slots_per_tenant=max_slots_per_tenant)
        count = sum(slots.values())
        first_record = _gap([(p.record.first_record, p.count) for p in self.pools.values()], 0, count, MAX_SLOTS)
        byte_size = sum(geometry.slot_bytes(bucket) * number for bucket, number in slots.items())
        offset = _gap([(p.record.offset, p.byte_size) for p in self.pools.values()], DATA_OFFSET, byte_size, self._arena.byte_size)
        if offset is None:
            raise ResourceExhausted(
                f"pool {name!r} needs {byte_size} bytes in one piece, and the arena of {self._arena.byte_size} (arena_bytes) "
                f"has {self.reserved_bytes} reserved"
            )
        if first_record is None:
            raise ResourceExhausted(f"pool {name!r} needs {count} slots, the arena has at most {MAX_SLOTS}")
        record = PoolRecord(
            name, geometry.layers, geometry.kv_heads, geometry.head_size, geometry.datatype, dict(sorted(slots.items())),
            max_slots_per_tenant, offset, first_record,
        )  # fmt: skip
        stored = StoredPool(record, pool)
        for number in range(first_record, first_record + count):
            self._table.clear_lease(number)
        self._table.write_pools([*(p.record for p in self.pools.values()), record])
        self.pools[name] = stored
        return stored

    def delete(self, name: str) -> None:
        """Removes a pool without leases. Raises NotFound, FailedPrecondition."""
        stored = self._pool(name)
        if stored.pool.leases:
            raise FailedPrecondition(f"pool {name!r} has {len(stored.pool.leases)} leased slots")
        self._table.write_pools([p.record for p in self.pools.values() if p is not stored])
        del self.pools[name]
        self._arena.discard(stored.record.offset, stored.byte_size)

    def lease(self, name: str, *, tokens: int, tenant: str, owner: str, ttl: int) -> tuple[Lease, Place]:
        """Leases a slot for `ttl` nanoseconds. Raises MeshError."""
        for label, value in (("tenant", tenant), ("owner", owner)):
            if len(value.encode()) > name_limit(label):
                raise InvalidInput(f"{label}: at most {name_limit(label)} bytes expected, got {len(value.encode())}")
        stored = self._pool(name)
        lease = stored.pool.lease(self._new_id(), tokens=tokens, tenant=tenant, owner=owner, expires=self._clock() + ttl)
        try:
            self._table.write_lease(stored.record_of(lease), lease)
        except OSError as error:
            stored.pool.release(lease.lease_id)
            raise ResourceExhausted(f"the lease cannot be written down: {error.strerror}") from error
        return lease, stored.place(lease)

    def renew(self, lease_ids: list[int], ttl: int) -> list[int]:
        """Extends leases; returns those that do not live."""
        self.expire()
        expires = self._clock() + ttl
        lost: list[int] = []
        for lease_id in lease_ids:
            for stored in self.pools.values():
                lease = stored.pool.renew(lease_id, expires)
                if lease is not None:
                    self._table.write_lease(stored.record_of(lease), lease)
                    break
            else:
                lost.append(lease_id)
        return lost

    def release(self, lease_ids: list[int]) -> int:
        """Ends leases; returns how many lived."""
        return sum(self._release(lease_id) for lease_id in lease_ids)

    def expire(self) -> int:
        """Ends the leases whose time is over; returns how many."""
        now = self._clock()
        ids = [lease_id for stored in self.pools.values() for lease_id in stored.pool.lapsed(now)]
        ended = self.release(ids)
        self.lapsed += ended
        return ended

    @property
    def reserved_bytes(self) -> int:
        """Bytes that pools have reserved."""
        return sum(stored.byte_size for stored in self.pools.values())

    def committed_bytes(self, name: str, bucket: int) -> int:
        """Bytes of memory that the slots of a bucket use."""
        place = self.pools[name].places[bucket]
        return self._arena.committed(place.offset, place.byte_size)

    def check_integrity(self) -> list[str]:
        """One sentence for each broken invariant of pools, layout and table."""
        problems: list[str] = []
        end = DATA_OFFSET
        for stored in sorted(self.pools.values(), key=lambda stored: stored.record.offset):
            name = stored.record.name
            problems += [f"pool {name!r}: {problem}" for problem in stored.pool.check_integrity()]
            if stored.record.offset < end:
                problems.append(f"pool {name!r} overlaps the one before it")
            if stored.record.offset % PAGE_BYTES:
                problems.append(f"pool {name!r} does not begin at a page")
            end = stored.record.offset + stored.byte_size
            told = {stored.record_of(lease): lease for lease in stored.pool.leases}
            for number in range(stored.record.first_record, stored.record.first_record + stored.count):
                written = self._table.read_lease(number)
                lease = told.get(number)
                if (written[:2] if written else None) != ((lease.lease_id, lease.expires) if lease else None):
                    problems.append(f"pool {name!r}: the record of slot {number} does not fit its lease")
        if end > self._arena.byte_size:
            problems.append("the pools reach over the arena's end")
        return problems

    def _release(self, lease_id: int) -> bool:
        for stored in self.pools.values():
            lease = stored.pool.release(lease_id)
            if lease is not None:
                place = stored.place(lease)
                # First the data, then the record: a crash between them leaves a lease that lapses, never a free slot with data.
                self._arena.discard(place.offset, place.byte_size)
                self._table.clear_lease(stored.record_of(lease))
                return True
        return False

    def _restore(self) -> None:
        for record in self._table.read_pools():
            geometry = Geometry(record.layers, record.kv_heads, record.head_size, record.datatype)
            stored = StoredPool(record, Pool(geometry, record.slots, max_slots_per_tenant=record.max_slots_per_tenant))
            self.pools[record.name] = stored
            for bucket, slots in record.slots.items():
                for slot in range(slots):
                    written = self._table.read_lease(stored.first_records[bucket] + slot)
                    if written is not None:
                        lease_id, expires, tenant, owner = written
                        stored.pool.restore(Lease(lease_id, bucket, slot, tenant, owner, expires))

    def _pool(self, name: str) -> StoredPool:
        stored = self.pools.get(name)
        if stored is None:
            raise NotFound(f"no pool is named {name!r}")
        return stored

    def _new_id(self) -> int:
        # Random, so that an id from before a restart, or from another arena, never names a lease of today.
        return secrets.randbits(63) | 1


def _gap(taken: list[tuple[int, int]], begin: int, length: int, end: int) -> int | None:
    """Where the first gap of a length is between what is taken; None when there is none."""
    position = begin
    for offset, size in sorted(taken):
        if offset - position >= length:
            return position
        position = max(position, offset + size)
    return position if end - position >= length else None
