"""What every service is built on."""

import asyncio
import time
from pathlib import Path
from typing import ClassVar

import pytest
from prometheus_client import generate_latest
from pydantic import Field

from mcprun.errors import HTTP_STATUS, Internal, InvalidInput, MeshError, Unavailable, from_code
from mcprun.runtime.breaker import Breaker
from mcprun.runtime.logs import trace_fields
from mcprun.runtime.metrics import REGISTRY
from mcprun.runtime.outbox import Outbox
from mcprun.runtime.rpc import apart, split_host_port
from mcprun.runtime.settings import ServiceSettings


class ExampleSettings(ServiceSettings):
    """An example."""

    service: ClassVar[str] = "example"

    queue_size: int = Field(default=1, ge=1, description="A number")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MCPRUN_QUEUE_SIZE", "MCPRUN_EXAMPLE_QUEUE_SIZE", "MCPRUN_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_flags_weigh_more_than_environment_and_that_more_than_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mcprun.yaml"
    file.write_text("queue_size: 2\nother: ignored\n")
    flags = ["--config", str(file)]
    assert ExampleSettings.load([]).queue_size == 1
    assert ExampleSettings.load(flags).queue_size == 2
    file.write_text("queue_size: 2\nexample: {queue_size: 3}\n")
    assert ExampleSettings.load(flags).queue_size == 3
    monkeypatch.setenv("MCPRUN_QUEUE_SIZE", "4")
    assert ExampleSettings.load(flags).queue_size == 4
    monkeypatch.setenv("MCPRUN_EXAMPLE_QUEUE_SIZE", "5")
    assert ExampleSettings.load(flags).queue_size == 5
    assert ExampleSettings.load([*flags, "--queue-size", "6"]).queue_size == 6


@pytest.mark.parametrize(
    ("content", "argv", "words"),
    [
        ("", ["--queue-size", "0"], ("queue_size", "greater than or equal to 1", "'0'")),
        ("", ["--queue-size", "many"], ("queue_size", "integer", "'many'")),
        ("example: {queue_sise: 3}", [], ("queue_sise",)),
        ("example: 3", [], ("example", "mapping")),
        ("[1]", [], ("mapping",)),
        ("a: [", [], ("YAML",)),
        ("environment: moon", [], ("environment", "prod", "'moon'")),
    ],
)
def test_a_bad_value_stops_the_start_with_a_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, argv: list[str], words: tuple[str, ...]
) -> None:
    file = tmp_path / "mcprun.yaml"
    file.write_text(content)
    with pytest.raises(SystemExit) as stop:
        ExampleSettings.load(["--config", str(file), *argv])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    for word in words:
        assert word in said
    assert "Traceback" not in said


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ExampleSettings.load(["--config", "/nowhere/mcprun.yaml"])
    assert "/nowhere/mcprun.yaml" in capsys.readouterr().err


def test_the_environment_picks_the_defaults_of_logs_and_sampling() -> None:
    for environment, level, ratio in (("dev", "debug", 1.0), ("staging", "info", 0.2), ("prod", "warning", 0.05)):
        settings = ExampleSettings.load(["--environment", environment])
        assert (settings.effective_log_level, settings.effective_sample_ratio) == (level, ratio)
    settings = ExampleSettings.load(["--environment", "prod", "--log-level", "debug", "--trace-sample-ratio", "0.5"])
    assert (settings.effective_log_level, settings.effective_sample_ratio) == ("debug", 0.5)


def state_of(dependency: str) -> float:
    line = f'mcprun_breaker_state{{dependency="{dependency}"}} '
    return next(float(text.removeprefix(line)) for text in generate_latest(REGISTRY).decode().splitlines() if text.startswith(line))


@pytest.fixture
def broken() -> Breaker:
    breaker = Breaker("example", fail_max=3, reset_seconds=0.2)
    for _ in range(3):
        with pytest.raises(ConnectionError), breaker.guard():
            raise ConnectionError
    return breaker


def test_a_breaker_opens_after_failures_in_a_row_and_refuses_at_once_with_a_hint(broken: Breaker) -> None:
    assert broken.state == "open"
    assert state_of("example") == 2
    with pytest.raises(Unavailable) as error, broken.guard():
        raise AssertionError("the block must not run")
    assert error.value.retry_after == 0.2


def test_a_breaker_closes_when_its_trial_succeeds_and_opens_when_it_fails(broken: Breaker) -> None:
    deadline = time.monotonic() + 5
    while True:
        try:
            with broken.guard():
                break
        except Unavailable:
            assert time.monotonic() < deadline
    assert broken.state == "closed"
    assert state_of("example") == 0


async def test_an_outbox_joins_what_is_ready_and_splits_what_is_large() -> None:
    outbox: Outbox[int] = Outbox(max_bytes=10)
    groups = outbox.groups()
    for item, size in ((1, 4), (2, 4), (3, 4), (4, 100), (5, 1)):
        outbox.put(item, size)
    assert [await anext(groups) for _ in range(4)] == [[1, 2], [3], [4], [5]]
    waiting = asyncio.create_task(anext(groups))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    outbox.put(6)
    assert await waiting == [6]
    outbox.put(7)
    outbox.close()
    outbox.put(8)
    assert [group async for group in groups] == [[7]]


def test_every_error_has_an_http_status_and_comes_back_from_its_code() -> None:
    for kind in MeshError.__subclasses__():
        if kind.__module__ == "mcprun.errors":
            error = from_code(kind.code.value[0], "why", retry_after=1.0)
            assert (type(error), error.message, error.retry_after) == (kind, "why", 1.0)
            assert HTTP_STATUS[kind.code] >= 400
    assert isinstance(from_code(15, "lost"), Internal)
    assert isinstance(from_code(999, "odd"), Internal)
    assert from_code(3, "x").code is InvalidInput.code


@pytest.mark.parametrize(("address", "expected"), [("h:1", ("h", 1)), ("[::1]:80", ("::1", 80)), ("127.0.0.1:0", ("127.0.0.1", 0))])
def test_addresses(address: str, expected: tuple[str, int]) -> None:
    assert split_host_port(address) == expected


@pytest.mark.parametrize("address", ["h", "h:", ":x", "h:70000", ""])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        split_host_port(address)


def test_the_trace_of_a_header_for_a_log_line() -> None:
    assert trace_fields(f"00-{'a' * 32}-{'b' * 16}-01") == {"trace_id": "a" * 32, "span_id": "b" * 16}
    assert trace_fields("") == {}
    assert trace_fields("nonsense-x-y-z") == {}


async def broken_life() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fail())
        await asyncio.get_running_loop().create_future()


async def fail() -> None:
    raise ConnectionError("broken")


async def test_a_life_that_breaks_apart_leaves_its_caller_as_it_was() -> None:
    task = asyncio.current_task()
    assert task is not None
    for _ in range(3):
        with pytest.raises(ExceptionGroup):
            await apart(broken_life())
        assert task.cancelling() == 0


async def test_a_call_that_was_cut_off_is_no_cancellation_of_the_caller() -> None:
    async def cut_off() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ConnectionError):
        await apart(cut_off())


async def test_a_cancellation_is_kept_though_the_life_fails_at_it() -> None:
    async def stubborn() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise ConnectionError("broken")

    caller = asyncio.create_task(apart(stubborn()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
