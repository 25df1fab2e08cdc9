"""The arena and what is written in it survive the process; its memory is used only where tokens are."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mcprun.errors import AlreadyExists, FailedPrecondition, InvalidInput, NotFound, ResourceExhausted
from mcprun_kvcache.arena import SharedFile
from mcprun_kvcache.geometry import PAGE_BYTES, Geometry
from mcprun_kvcache.store import Store

GEOMETRY = Geometry(layers=2, kv_heads=3, head_size=64, datatype="FP32")
MEBIBYTE = 1024 * 1024


class Clock:
    now = 1_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    # In memory, as in use: only there is a hole punched page by page everywhere.
    arena = Path("/dev/shm") / f"mcprun-test-{tmp_path.name}"
    arena.unlink(missing_ok=True)
    yield arena
    arena.unlink(missing_ok=True)


def open_store(path: Path, clock: Clock, *, size: int = 64 * MEBIBYTE) -> tuple[SharedFile, Store]:
    arena = SharedFile(path, size)
    return arena, Store(arena, clock=clock)


def test_a_restart_finds_pools_and_leases_again(path: Path) -> None:
    clock = Clock()
    arena, store = open_store(path, clock)
    store.create("m:1", GEOMETRY, {128: 4, 512: 2}, max_slots_per_tenant=3)
    kept, place = store.lease("m:1", tokens=100, tenant="a", owner="worker", ttl=50)
    gone, _ = store.lease("m:1", tokens=400, tenant="a", owner="worker", ttl=50)
    store.release([gone.lease_id])
    arena.write(place.offset, b"keys")
    arena.close(remove=False)

    arena, store = open_store(path, clock)
    assert arena.existed
    assert store.pools["m:1"].pool.leases == [kept]
    assert store.pools["m:1"].pool.max_slots_per_tenant == 3
    assert arena.read(place.offset, 4) == b"keys"
    assert store.check_integrity() == []
    clock.now += 50
    assert store.expire() == 1
    assert arena.read(place.offset, 4) == bytes(4)
    arena.close(remove=True)


def test_a_lease_lapses_unless_it_is_renewed(path: Path) -> None:
    clock = Clock()
    arena, store = open_store(path, clock)
    store.create("m", GEOMETRY, {128: 2}, max_slots_per_tenant=0)
    first, _ = store.lease("m", tokens=1, tenant="", owner="", ttl=10)
    second, _ = store.lease("m", tokens=1, tenant="", owner="", ttl=10)
    clock.now += 9
    assert store.renew([first.lease_id, 12345], 10) == [12345]
    clock.now += 2
    assert store.expire() == 1
    assert store.renew([first.lease_id, second.lease_id], 10) == [second.lease_id]
    assert store.lapsed == 1
    arena.close(remove=True)


def fill(arena: SharedFile, offset: int, tokens: int, bucket: int) -> None:
    """Writes so many tokens of every head, as GroupQueryAttention does."""
    for head in range(GEOMETRY.heads):
        arena.write(offset + head * bucket * GEOMETRY.token_bytes, b"k" * (tokens * GEOMETRY.token_bytes))


@pytest.mark.parametrize("tokens", [128, 129, 200, 500, 512])
def test_the_waste_of_a_live_sequence_is_at_most_an_eighth(path: Path, tokens: int) -> None:
    arena, store = open_store(path, Clock())
    store.create("m", GEOMETRY, {128: 2, 512: 2}, max_slots_per_tenant=0)
    before = arena.committed_in_all()
    lease, place = store.lease("m", tokens=tokens, tenant="", owner="", ttl=10)
    fill(arena, place.offset, tokens, lease.bucket)
    used = arena.committed_in_all() - before
    needed = GEOMETRY.slot_bytes(tokens)
    assert needed <= used <= needed * 1.125
    assert store.committed_bytes("m", lease.bucket) == used
    store.release([lease.lease_id])
    assert store.committed_bytes("m", lease.bucket) == 0
    assert arena.committed_in_all() <= before
    arena.close(remove=True)


def test_pools_do_not_overlap_and_their_place_is_used_again(path: Path) -> None:
    arena, store = open_store(path, Clock(), size=24 * MEBIBYTE)
    offsets = [store.create(name, GEOMETRY, {128: 8}, max_slots_per_tenant=0).record.offset for name in "abc"]
    assert len(set(offsets)) == 3
    assert all(offset % PAGE_BYTES == 0 for offset in offsets)
    store.delete("b")
    assert store.create("d", GEOMETRY, {128: 8}, max_slots_per_tenant=0).record.offset == offsets[1]
    with pytest.raises(ResourceExhausted, match="arena_bytes"):
        store.create("e", GEOMETRY, {8192: 8}, max_slots_per_tenant=0)
    assert store.check_integrity() == []
    arena.close(remove=True)


def test_what_is_asked_wrongly_is_refused(path: Path) -> None:
    arena, store = open_store(path, Clock())
    store.create("m", GEOMETRY, {128: 1}, max_slots_per_tenant=0)
    assert store.create("m", GEOMETRY, {128: 1}, max_slots_per_tenant=0) is store.pools["m"]
    with pytest.raises(AlreadyExists):
        store.create("m", GEOMETRY, {128: 2}, max_slots_per_tenant=0)
    with pytest.raises(InvalidInput):
        store.create("", GEOMETRY, {128: 1}, max_slots_per_tenant=0)
    with pytest.raises(NotFound):
        store.lease("n", tokens=1, tenant="", owner="", ttl=1)
    with pytest.raises(InvalidInput, match="tenant"):
        store.lease("m", tokens=1, tenant="t" * 41, owner="", ttl=1)
    store.lease("m", tokens=1, tenant="", owner="", ttl=1)
    with pytest.raises(FailedPrecondition, match="leased"):
        store.delete("m")
    arena.close(remove=True)


def test_a_second_owner_is_refused(path: Path) -> None:
    arena, _ = open_store(path, Clock())
    with pytest.raises(FailedPrecondition, match="another process"):
        SharedFile(path, MEBIBYTE)
    arena.close(remove=True)


@pytest.mark.parametrize("content", [b"garbage" * 1000, b"mcprunKV" + bytes(100)])
def test_a_file_that_is_no_arena_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(FailedPrecondition):
        open_store(path, Clock())
    assert path.read_bytes() == content


@pytest.mark.parametrize("cut", [0, 24, 40, 200])
def test_a_directory_that_was_cut_off_while_it_was_written_leaves_the_one_before(path: Path, cut: int) -> None:
    arena, store = open_store(path, Clock())
    store.create("a", GEOMETRY, {128: 1}, max_slots_per_tenant=0)
    before = {copy: arena.read(copy * 512 * 1024, 4096) for copy in (0, 1)}
    store.create("b", GEOMETRY, {128: 1}, max_slots_per_tenant=0)
    written = next(copy for copy in (0, 1) if arena.read(copy * 512 * 1024, 4096) != before[copy])
    after = arena.read(written * 512 * 1024, 4096)
    arena.write(written * 512 * 1024, after[:cut] + before[written][cut:])
    arena.close(remove=False)
    arena, store = open_store(path, Clock())
    assert sorted(store.pools) == ["a"]
    assert store.check_integrity() == []
    arena.close(remove=True)
