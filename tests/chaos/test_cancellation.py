"""Callers that leave take their requests with them, and nothing of them stays behind."""

import asyncio
import contextlib
import time
from pathlib import Path

import grpc
import grpc.aio
import httpx
import numpy as np
import psutil
import pytest
from load import METHOD, request, slow_request

from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun.testing import Mesh

PROCESSES = ("router", "batcher", "worker")

pytestmark = pytest.mark.heavy


def value(mesh: Mesh, process: str, name: str) -> float:
    return next(float(line.rpartition(" ")[2]) for line in mesh.metrics(process).splitlines() if line.startswith(name))


async def cancel_calls(target: str, message: oip.ModelInferRequest, *, calls: int, at_once: int) -> None:
    async with grpc.aio.insecure_channel(target) as channel:
        infer = channel.unary_unary(METHOD, request_serializer=oip.ModelInferRequest.SerializeToString)

        async def one() -> None:
            call = infer(message)
            await asyncio.sleep(0.1)
            call.cancel()
            # The few that ran first may have been answered.
            with contextlib.suppress(asyncio.CancelledError):
                await call

        for _ in range(calls // at_once):
            await asyncio.gather(*(one() for _ in range(at_once)))


def settle(mesh: Mesh) -> None:
    deadline = time.monotonic() + 20
    while (
        value(mesh, "router", "mcprun_router_open_requests") > 0
        or value(mesh, "batcher", "mcprun_batcher_running_requests") > 0
        or any(
            not line.endswith(" 0.0") for line in mesh.metrics("batcher").splitlines() if line.startswith("mcprun_batcher_queue_requests")
        )
    ):
        assert time.monotonic() < deadline, "requests of callers that left are still there"
        time.sleep(0.05)


@pytest.mark.parametrize("past_the_edge", [False, True])
def test_ten_thousand_cancelled_calls_leave_no_task_and_no_memory(repository: Path, past_the_edge: bool) -> None:
    with Mesh(repository) as mesh:
        target = mesh.router_grpc if past_the_edge else mesh.grpc_target
        # Each call waits behind a job that takes long, so that it is cancelled in the queue.
        message = request("slow", "turns", np.array([200], np.int64), "INT64")
        asyncio.run(cancel_calls(target, message, calls=1_000, at_once=200))
        settle(mesh)
        tasks = {name: value(mesh, name, "mcprun_asyncio_tasks") for name in PROCESSES}
        memory = {name: psutil.Process(mesh.pid(name)).memory_info().rss for name in PROCESSES}
        asyncio.run(cancel_calls(target, message, calls=10_000, at_once=200))
        settle(mesh)
        for name in PROCESSES:
            assert value(mesh, name, "mcprun_asyncio_tasks") <= tasks[name] + 5, name
            grown = psutil.Process(mesh.pid(name)).memory_info().rss - memory[name]
            assert grown < 24 * 1024 * 1024, f"{name} grew by {grown} bytes"
        cancelled = sum(
            float(line.rpartition(" ")[2])
            for line in mesh.metrics("batcher").splitlines()
            if line.startswith("mcprun_batcher_requests_total") and 'outcome="cancelled"' in line
        )
        assert cancelled > 2_000, "most calls were not cancelled in the mesh, so the test showed nothing"


def test_a_rest_caller_that_leaves_frees_the_queue(repository: Path) -> None:
    with Mesh(repository) as mesh:
        body = {"inputs": [{"name": "turns", "datatype": "INT64", "shape": [1], "data": [1_000_000]}]}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{mesh.http_url}/v2/models/slow/infer", json=body, timeout=httpx.Timeout(5, read=0.3))
        # The one that runs cannot be stopped; those behind it must not run.
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{mesh.http_url}/v2/models/slow/infer", json=body, timeout=httpx.Timeout(5, read=0.3))
        deadline = time.monotonic() + 10
        while value(mesh, "router", "mcprun_router_open_requests") > 0:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_slow_reader_of_a_stream_does_not_grow_the_router(repository: Path) -> None:
    async def send_without_reading(target: str) -> int:
        message = request("versions", "x", np.ones((64, 4), np.float32), "FP32").SerializeToString()
        async with grpc.aio.insecure_channel(target, options=[("grpc.http2.lookahead_bytes", 65536)]) as channel:
            call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
            sent = 0
            try:
                while sent < 200_000:
                    await asyncio.wait_for(call.write(message), timeout=2)
                    sent += 1
            except TimeoutError:
                pass
            call.cancel()
            return sent

    with Mesh(repository) as mesh:
        before = psutil.Process(mesh.pid("router")).memory_info().rss
        sent = asyncio.run(send_without_reading(mesh.router_grpc))
        assert sent < 200_000, "the router read on although nobody took its answers"
        assert psutil.Process(mesh.pid("router")).memory_info().rss - before < 64 * 1024 * 1024
        settle(mesh)


def test_the_jobs_of_this_file_still_run(repository: Path) -> None:
    with Mesh(repository) as mesh, grpc.insecure_channel(mesh.grpc_target) as channel:
        infer = channel.unary_unary(METHOD, request_serializer=oip.ModelInferRequest.SerializeToString)
        assert len(infer(slow_request(1))) > 0
