"""A caller that leaves takes its task along; one that stays costs nothing that is left behind."""

import asyncio
from typing import Any

import pytest

from mcprun_router.asgi import Departures


async def run_until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


async def test_a_caller_that_leaves_cancels_its_task() -> None:
    departures = Departures()
    ticking = asyncio.create_task(departures.run())
    left: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def work() -> bool:
        task = asyncio.current_task()
        assert task is not None
        departures.enter(task, lambda: left)  # type: ignore[arg-type, return-value]
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return departures.leave(task)
        return False

    job = asyncio.create_task(work())
    await run_until(lambda: len(departures) == 1)
    left.set_result({"type": "http.disconnect"})
    async with asyncio.timeout(5):
        assert await job is True
    assert len(departures) == 0
    ticking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ticking


async def test_a_request_that_is_answered_leaves_nothing() -> None:
    departures = Departures()
    task = asyncio.current_task()
    assert task is not None
    for _ in range(1000):
        departures.enter(task, asyncio.Event().wait)  # type: ignore[arg-type]
        assert departures.leave(task) is False
    assert len(departures) == 0
