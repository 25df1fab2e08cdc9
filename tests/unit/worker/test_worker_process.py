"""The worker as a process: it comes up warm, and it stops within its bound."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import numpy as np
import zoo
from grpc_health.v1 import health_pb2, health_pb2_grpc

from .gateway import Gateway, Link, item, request

SERVING = health_pb2.HealthCheckResponse.SERVING


@asynccontextmanager
async def worker(gateway: Gateway, models: Path, *flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("mcprun-worker")),
        *("--batcher-address", gateway.address, "--models", str(models), "--grpc-address", f"unix:{models}/w.sock", *flags),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def stop(process: asyncio.subprocess.Process, *, within: float) -> int:
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(within):
        return await process.wait()


async def health(models: Path, wanted: int) -> None:
    """Returns once the worker's health is as wanted."""
    async with grpc.aio.insecure_channel(f"unix:{models}/w.sock") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=30)
        async for answer in watch:
            if answer.status == wanted:
                return


def slow(models: Path) -> None:
    zoo.write(models, "slow", "model_path: model.onnx\nwarmup: false\ninstances: {threads: 1}\n", model_onnx=zoo.slow())


async def begin(link: Link, number: int, *, turns: int) -> None:
    """Sends a batch that runs for long; returns once the worker is at work on it."""
    key = ("slow", "1")
    await link.ready(key)
    link.batch(number, key, [item(number, request("slow", ("turns", np.array([turns], np.int64)), datatype="INT64"))])
    # A frame after the batch: once a command in it is answered, the batch before it has been taken.
    await link.load(number, "slow")


async def test_it_serves_once_it_is_attached_and_settled_and_exits_with_0_when_told_to_stop(gateway: Gateway, tmp_path: Path) -> None:
    zoo.write(tmp_path, "mlp", "model_path: model.onnx\n", model_onnx=zoo.mlp())
    async with worker(gateway, tmp_path) as process:
        link = await gateway.link()
        await link.until(lambda: link.settled)
        await health(tmp_path, SERVING)
        assert await stop(process, within=30) == 0
    assert link.draining


async def test_what_was_accepted_is_answered_before_it_stops(gateway: Gateway, tmp_path: Path) -> None:
    slow(tmp_path)
    async with worker(gateway, tmp_path) as process:
        link = await gateway.link()
        await begin(link, 1, turns=2000)
        assert not link.results
        assert await stop(process, within=60) == 0
    await link.until(lambda: link.ended)
    assert link.draining
    assert link.results[1][0].answers[0].response


async def test_a_batch_that_runs_for_ever_does_not_keep_it_from_stopping(gateway: Gateway, tmp_path: Path) -> None:
    slow(tmp_path)
    async with worker(gateway, tmp_path, "--drain-seconds", "0.2") as process:
        link = await gateway.link()
        await begin(link, 1, turns=10_000_000)
        assert await stop(process, within=20) == 0
    assert not link.results
