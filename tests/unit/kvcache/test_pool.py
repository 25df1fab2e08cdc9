"""Slots are leased once, given back, and counted, whatever happens in between."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mcprun.errors import InvalidInput, ResourceExhausted
from mcprun_kvcache.geometry import Geometry
from mcprun_kvcache.pool import Lease, Pool

GEOMETRY = Geometry(layers=2, kv_heads=2, head_size=64, datatype="FP32")


def lease(pool: Pool, lease_id: int, *, tokens: int = 1, tenant: str = "") -> Lease:
    return pool.lease(lease_id, tokens=tokens, tenant=tenant, owner="w", expires=100)


def test_the_smallest_bucket_that_fits_is_taken_and_then_a_larger_one() -> None:
    pool = Pool(GEOMETRY, {128: 1, 512: 1})
    assert lease(pool, 1, tokens=128).bucket == 128
    assert lease(pool, 2, tokens=128).bucket == 512
    with pytest.raises(ResourceExhausted):
        lease(pool, 3)


def test_the_slot_that_was_given_back_last_is_taken_first() -> None:
    pool = Pool(GEOMETRY, {128: 3})
    slots = [lease(pool, number).slot for number in range(3)]
    pool.release(1)
    pool.release(0)
    assert lease(pool, 10).slot == slots[0]
    assert lease(pool, 11).slot == slots[1]


def test_a_tenant_has_its_share_and_no_more() -> None:
    pool = Pool(GEOMETRY, {128: 4}, max_slots_per_tenant=2)
    lease(pool, 1, tenant="a")
    lease(pool, 2, tenant="a")
    with pytest.raises(ResourceExhausted, match="max_slots_per_tenant"):
        lease(pool, 3, tenant="a")
    lease(pool, 4, tenant="b")
    pool.release(1)
    lease(pool, 5, tenant="a")


@pytest.mark.parametrize("tokens", [0, 129, 10_000])
def test_tokens_that_fit_no_bucket_are_refused(tokens: int) -> None:
    with pytest.raises(InvalidInput, match="128"):
        lease(Pool(GEOMETRY, {128: 1}), 1, tokens=tokens)


@pytest.mark.parametrize("slots", [{}, {64: 1}, {128: 0}])
def test_slots_that_there_are_not(slots: dict[int, int]) -> None:
    with pytest.raises(InvalidInput):
        Pool(GEOMETRY, slots)


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_size", "datatype", "field"),
    [
        (0, 1, 64, "FP32", "layers"),
        (1, 0, 64, "FP32", "kv_heads"),
        (1, 1, 0, "FP32", "head_size"),
        (1, 1, 64, "FP8", "datatype"),
        (1, 1, 5, "FP32", "pages"),
    ],
)
def test_a_geometry_that_cannot_be_laid_out_is_refused_by_field(
    layers: int, kv_heads: int, head_size: int, datatype: str, field: str
) -> None:
    with pytest.raises(InvalidInput, match=field):
        Geometry(layers, kv_heads, head_size, datatype)


class PoolMachine(RuleBasedStateMachine):
    """A pool beside a plain dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(GEOMETRY, {128: 3, 512: 2}, max_slots_per_tenant=3)
        self.model: dict[int, Lease] = {}
        self.ids = 0
        self.now = 0

    @rule(tokens=st.integers(1, 512), tenant=st.sampled_from("ab"), ttl=st.integers(1, 20))
    def take(self, tokens: int, tenant: str, ttl: int) -> None:
        self.ids += 1
        held = sum(known.tenant == tenant for known in self.model.values())
        fits = [b for b, count in ((128, 3), (512, 2)) if b >= tokens and sum(k.bucket == b for k in self.model.values()) < count]
        try:
            got = self.pool.lease(self.ids, tokens=tokens, tenant=tenant, owner="w", expires=self.now + ttl)
        except ResourceExhausted:
            assert held == 3 or not fits
        else:
            assert held < 3
            assert got.bucket == fits[0]
            assert (got.bucket, got.slot) not in {(known.bucket, known.slot) for known in self.model.values()}
            self.model[got.lease_id] = got

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        assert self.pool.release(key) == self.model.pop(key)
        assert self.pool.release(key) is None

    @precondition(lambda self: self.model)
    @rule(data=st.data(), ttl=st.integers(1, 20))
    def renew(self, data: st.DataObject, ttl: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        renewed = self.pool.renew(key, self.now + ttl)
        assert renewed is not None
        self.model[key] = renewed

    @rule(ticks=st.integers(1, 15))
    def wait(self, ticks: int) -> None:
        self.now += ticks
        expected = {key for key, known in self.model.items() if known.expires <= self.now}
        assert set(self.pool.lapsed(self.now)) == expected
        for key in expected:
            self.pool.release(key)
            del self.model[key]

    @invariant()
    def it_is_whole(self) -> None:
        assert self.pool.check_integrity() == []
        assert {known.lease_id: known for known in self.pool.leases} == self.model


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPool = PoolMachine.TestCase
