"""Slots and their leases. Pure logic: no I/O, and every method is told the time."""

from dataclasses import dataclass, field

from mcprun.errors import InvalidInput, ResourceExhausted
from mcprun_kvcache.geometry import BUCKETS, Geometry


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot that somebody uses."""

    lease_id: int
    bucket: int
    """Tokens that the slot holds."""
    slot: int
    """Its number in the bucket."""
    tenant: str
    owner: str
    expires: int
    """When it lapses, in nanoseconds of the caller's clock."""


@dataclass(slots=True)
class _Bucket:
    slots: int
    free: list[int] = field(default_factory=list)
    """Free slots; the one that was given back last is taken first, since its pages may still be warm in the caches."""


class Pool:
    """The slots of one model version.

    Invariants, tested by `check_integrity`: each slot is either free or leased, once; a tenant has no more leases than its
    share; a lease's id is unique.
    """

    def __init__(self, geometry: Geometry, slots: dict[int, int], *, max_slots_per_tenant: int = 0) -> None:
        """`slots` is how many slots each bucket has. Raises InvalidInput for buckets that there are not."""
        if not slots:
            raise InvalidInput("slots: at least one bucket expected, got none")
        for bucket, count in slots.items():
            if bucket not in BUCKETS:
                raise InvalidInput(f"slots: a bucket of {', '.join(map(str, BUCKETS))} tokens expected, got {bucket}")
            if count < 1:
                raise InvalidInput(f"slots: at least one slot of {bucket} tokens expected, got {count}")
        self.geometry = geometry
        self.max_slots_per_tenant = max_slots_per_tenant
        self._buckets = {bucket: _Bucket(count, list(reversed(range(count)))) for bucket, count in sorted(slots.items())}
        self._leases: dict[int, Lease] = {}
        self._by_tenant: dict[str, int] = {}

    @property
    def slots(self) -> dict[int, int]:
        """How many slots each bucket has."""
        return {tokens: bucket.slots for tokens, bucket in self._buckets.items()}

    @property
    def leases(self) -> list[Lease]:
        """The leases that live."""
        return list(self._leases.values())

    def leased(self, bucket: int) -> int:
        """How many slots of a bucket are leased."""
        return self._buckets[bucket].slots - len(self._buckets[bucket].free)

    def lease(self, lease_id: int, *, tokens: int, tenant: str, owner: str, expires: int) -> Lease:
        """Takes a slot of the smallest bucket that holds `tokens` and has one free.

        Raises InvalidInput when no bucket is large enough, ResourceExhausted when none is free or the tenant has its share.
        """
        if tokens < 1 or tokens > max(self._buckets):
            raise InvalidInput(f"tokens: 1 to {max(self._buckets)} expected, got {tokens}")
        share = self.max_slots_per_tenant
        if share and self._by_tenant.get(tenant, 0) >= share:
            raise ResourceExhausted(f"tenant {tenant!r} has its {share} slots (max_slots_per_tenant)", retry_after=1.0)
        for size, bucket in self._buckets.items():
            if size >= tokens and bucket.free:
                lease = Lease(lease_id, size, bucket.free.pop(), tenant, owner, expires)
                self._add(lease)
                return lease
        raise ResourceExhausted(f"no slot for {tokens} tokens is free", retry_after=1.0)

    def restore(self, lease: Lease) -> None:
        """Takes the very slot of a lease that was there before a restart. Raises ValueError when that cannot be."""
        bucket = self._buckets.get(lease.bucket)
        if bucket is None or lease.slot not in bucket.free or lease.lease_id in self._leases:
            raise ValueError(f"lease {lease.lease_id} names slot {lease.slot} of {lease.bucket} tokens, which is not free")
        bucket.free.remove(lease.slot)
        self._add(lease)

    def renew(self, lease_id: int, expires: int) -> Lease | None:
        """Sets when a lease lapses; None when it does not live."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return None
        renewed = Lease(lease_id, lease.bucket, lease.slot, lease.tenant, lease.owner, expires)
        self._leases[lease_id] = renewed
        return renewed

    def release(self, lease_id: int) -> Lease | None:
        """Gives a slot back; None when the lease does not live."""
        lease = self._leases.pop(lease_id, None)
        if lease is not None:
            self._buckets[lease.bucket].free.append(lease.slot)
            self._by_tenant[lease.tenant] -= 1
            if not self._by_tenant[lease.tenant]:
                del self._by_tenant[lease.tenant]
        return lease

    def lapsed(self, now: int) -> list[int]:
        """The leases whose time is over."""
        return [lease.lease_id for lease in self._leases.values() if lease.expires <= now]

    def check_integrity(self) -> list[str]:
        """One sentence for each invariant that is broken."""
        problems: list[str] = []
        for tokens, bucket in self._buckets.items():
            taken = [lease.slot for lease in self._leases.values() if lease.bucket == tokens]
            if sorted([*bucket.free, *taken]) != list(range(bucket.slots)):
                problems.append(f"bucket {tokens}: {len(bucket.free)} free and {len(taken)} leased slots are not its {bucket.slots}")
        counts: dict[str, int] = {}
        for key, lease in self._leases.items():
            counts[lease.tenant] = counts.get(lease.tenant, 0) + 1
            if key != lease.lease_id:
                problems.append(f"lease {lease.lease_id} is filed under {key}")
        if counts != self._by_tenant:
            problems.append(f"tenants are counted as {self._by_tenant}, but have {counts}")
        if self.max_slots_per_tenant and any(count > self.max_slots_per_tenant for count in counts.values()):
            problems.append(f"a tenant has more than {self.max_slots_per_tenant} slots")
        return problems

    def _add(self, lease: Lease) -> None:
        self._leases[lease.lease_id] = lease
        self._by_tenant[lease.tenant] = self._by_tenant.get(lease.tenant, 0) + 1
