"""The kvcache as a process: over gRPC, through kill -9 and SIGTERM."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mcprun.protocol.v1 import kvcache_pb2 as kv
from mcprun.protocol.v1 import kvcache_pb2_grpc


class Running:
    """A kvcache process and a client of it."""

    def __init__(self, folder: Path, arena: Path) -> None:
        self.address = f"unix:{folder / 'kv.sock'}"
        self.process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("mcprun-kvcache")),
                *("--grpc-address", self.address, "--arena-path", str(arena), "--arena-bytes", str(64 * 1024 * 1024)),
            ],
            stderr=subprocess.DEVNULL,
        )
        self.channel = grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])
        health = health_pb2_grpc.HealthStub(self.channel)
        deadline = time.monotonic() + 20
        while True:
            try:
                if health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=15).status == 1:
                    break
            except grpc.RpcError:
                assert time.monotonic() < deadline, "the kvcache does not serve"
        self.stub = kvcache_pb2_grpc.KVCacheStub(self.channel)


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Path]:
    path = Path("/dev/shm") / f"mcprun-test-{tmp_path.name}"
    path.unlink(missing_ok=True)
    yield path
    path.unlink(missing_ok=True)


POOL = kv.CreatePoolRequest(
    name="model:1",
    geometry=kv.Geometry(layers=1, kv_heads=2, head_size=64, datatype="FP32"),
    slots=[kv.SlotCount(bucket_tokens=128, slots=4)],
)


def test_leases_live_through_kill_9_and_the_arena_is_whole(tmp_path: Path, arena: Path) -> None:
    running = Running(tmp_path, arena)
    pool = running.stub.CreatePool(POOL)
    assert pool.buckets[0].slot_bytes == 2 * 2 * 128 * 64 * 4
    lease = running.stub.Lease(kv.LeaseRequest(pool="model:1", tokens=100, owner="w", ttl_ns=60_000_000_000))
    described = running.stub.DescribeArena(kv.DescribeArenaRequest())
    with open(described.path, "r+b") as file:
        file.seek(lease.offset)
        file.write(b"written by a worker")
    running.process.kill()
    running.process.wait()

    running = Running(tmp_path, arena)
    try:
        assert list(running.stub.CheckIntegrity(kv.CheckIntegrityRequest()).problems) == []
        stats = running.stub.GetStats(kv.GetKVCacheStatsRequest())
        assert stats.buckets[0].leased == 1
        assert stats.buckets[0].committed_bytes > 0
        with open(described.path, "rb") as file:
            file.seek(lease.offset)
            assert file.read(19) == b"written by a worker"
        assert list(running.stub.Renew(kv.RenewRequest(lease_ids=[lease.lease_id], ttl_ns=10**9)).lost) == []
        assert running.stub.Release(kv.ReleaseRequest(lease_ids=[lease.lease_id])).released == 1
        assert running.stub.GetStats(kv.GetKVCacheStatsRequest()).buckets[0].committed_bytes == 0
    finally:
        running.process.terminate()
        assert running.process.wait(timeout=10) == 0
    assert arena.exists(), "an arena whose path was named outlives the process"


def test_a_lease_of_a_vanished_worker_lapses(tmp_path: Path, arena: Path) -> None:
    running = Running(tmp_path, arena)
    try:
        running.stub.CreatePool(POOL)
        running.stub.Lease(kv.LeaseRequest(pool="model:1", tokens=1, ttl_ns=50_000_000))
        deadline = time.monotonic() + 10
        while running.stub.GetStats(kv.GetKVCacheStatsRequest()).lapsed_leases == 0:
            assert time.monotonic() < deadline
        assert running.stub.GetStats(kv.GetKVCacheStatsRequest()).buckets[0].leased == 0
    finally:
        running.process.terminate()
        assert running.process.wait(timeout=10) == 0


@pytest.mark.parametrize(
    ("request_", "code", "word"),
    [
        (kv.LeaseRequest(pool="none", tokens=1, ttl_ns=1), grpc.StatusCode.NOT_FOUND, "none"),
        (kv.LeaseRequest(pool="model:1", tokens=1), grpc.StatusCode.INVALID_ARGUMENT, "ttl_ns"),
        (kv.LeaseRequest(pool="model:1", tokens=4000, ttl_ns=1), grpc.StatusCode.INVALID_ARGUMENT, "4000"),
    ],
)
def test_refusals(tmp_path: Path, arena: Path, request_: kv.LeaseRequest, code: grpc.StatusCode, word: str) -> None:
    running = Running(tmp_path, arena)
    try:
        running.stub.CreatePool(POOL)
        with pytest.raises(grpc.RpcError) as error:
            running.stub.Lease(request_)
        assert error.value.code() is code
        assert word in (error.value.details() or "")
    finally:
        running.process.terminate()
        assert running.process.wait(timeout=10) == 0
