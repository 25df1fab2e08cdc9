"""The stream to the batcher: credits, cancellations, reconnecting, and what is said of models."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
import zoo

from mcprun.errors import MessageTooLarge
from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun.protocol.v1 import batcher_pb2, worker_pb2
from mcprun.runtime.telemetry import Telemetry
from mcprun_worker.attachment import Attachment
from mcprun_worker.models import Models
from mcprun_worker.repository import Fingerprint, Repository

from .gateway import MAX_BYTES, READY, UNAVAILABLE, Gateway, Link, item, request

ONE = np.ones((1, 4), np.float32)
SCALED = ("scaled", "1")
INVALID_ARGUMENT, NOT_FOUND, INTERNAL, CANCELLED, EXPIRED, AWAY = (
    code.value[0]
    for code in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNAVAILABLE,
    )
)


class Worker:
    """The parts of a worker's process that speak with the batcher."""

    def __init__(self, address: str, repository: Repository) -> None:
        self.attachment = Attachment(
            address,
            info=batcher_pb2.WorkerInfo(id="w", kvcache="off"),
            max_message_bytes=MAX_BYTES,
            telemetry=Telemetry("worker", exporter=None, sample_ratio=1),
        )
        self.models = Models(
            repository,
            threads=1,
            device="cpu",
            too_large=MessageTooLarge(MAX_BYTES),
            on_change=self.attachment.announce,
            on_forget=self.attachment.forget,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Worker"]:
        """Keeps it attached."""
        task = asyncio.create_task(self.attachment.run(self.models))
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.models.close()

    async def load_all(self) -> None:
        """The first round of loading."""
        await self.models.load_all()
        self.attachment.settle()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    zoo.write(tmp_path, "scaled", "model_path: model.onnx\n", model_onnx=zoo.scaled(2))
    return tmp_path


@pytest.fixture
async def worker(gateway: Gateway, repository: Path) -> AsyncIterator[Worker]:
    async with Worker(gateway.address, Repository(repository)).running() as worker:
        await worker.load_all()
        yield worker


@pytest.fixture
async def link(gateway: Gateway, worker: Worker) -> Link:
    link = await gateway.link()
    await link.until(lambda: link.settled)
    return link


def one(number: int, value: float = 1, **parts: int) -> worker_pb2.BatchItem:
    return item(number, request("scaled", ("x", ONE * np.float32(value))), **parts)


async def value(link: Link, number: int, key: tuple[str, str] = SCALED) -> float:
    """What the model makes of 1."""
    link.batch(number, key, [one(number)])
    (result,) = await link.result(number)
    (answer,) = result.answers
    assert not answer.HasField("status"), answer.status.message
    return float(np.frombuffer(oip.ModelInferResponse.FromString(answer.response).raw_output_contents[0], np.float32)[0])


def rewrite(repository: Path, content: bytes, name: str = "scaled") -> None:
    (repository / name / "model.onnx").write_bytes(content)


# Credits and batches


async def test_a_ready_version_gives_a_credit_for_each_instance_and_one_more(gateway: Gateway, repository: Path) -> None:
    zoo.write(repository, "many", "model_path: model.onnx\ninstances: {count: 3}\n", model_onnx=zoo.scaled(1))
    async with Worker(gateway.address, Repository(repository)).running() as worker:
        await worker.load_all()
        link = await gateway.link()
        await link.ready(("many", "1"), SCALED)
        assert link.credits == {("many", "1"): 4, SCALED: 2}


async def test_each_result_gives_its_credit_back(link: Link) -> None:
    for number in range(1, 6):
        assert await value(link, number) == 2
        assert link.credits[SCALED] == 2


async def test_each_item_of_a_batch_has_its_own_answer(link: Link) -> None:
    bad = item(3, b"no message")
    link.batch(1, SCALED, [one(1, 1), one(2, float("nan")), bad])
    (result,) = await link.result(1)
    assert [answer.id for answer in result.answers] == [1, 2, 3]
    assert result.answers[2].status.code == INVALID_ARGUMENT
    assert result.rows == 2
    assert result.compute_infer_ns > 0


async def test_a_request_whose_time_is_over_does_not_run(link: Link) -> None:
    link.batch(1, SCALED, [one(1, timeout_ns=1), one(2)])
    (result,) = await link.result(1)
    assert result.answers[0].status.code == EXPIRED
    assert result.answers[1].response
    assert (result.expired, result.rows) == (1, 1)


async def test_a_cancellation_that_comes_with_its_batch_counts(link: Link) -> None:
    link.batch(1, SCALED, [one(1), one(2)], cancelled=[2])
    (result,) = await link.result(1)
    assert result.answers[0].response
    assert result.answers[1].status.code == CANCELLED
    assert result.cancelled == 1


async def test_a_cancellation_that_comes_after_the_answer_is_forgotten(link: Link) -> None:
    await value(link, 1)
    link.send(cancelled=[1, 2, 3])
    assert await value(link, 2) == 2
    assert await value(link, 1) == 2


async def test_answers_that_do_not_fit_into_one_message_come_in_several(gateway: Gateway, tmp_path: Path) -> None:
    zoo.write(tmp_path, "zeros", "model_path: model.onnx\n", model_onnx=zoo.zeros())
    body = request("zeros", ("count", np.array([MAX_BYTES // 6], np.int64)), datatype="INT64")
    async with Worker(gateway.address, Repository(tmp_path)).running() as worker:
        await worker.load_all()
        link = await gateway.link()
        await link.ready(("zeros", "1"))
        link.batch(1, ("zeros", "1"), [item(number, body) for number in (1, 2, 3)])
        parts = await link.result(1)
        assert [part.partial for part in parts] == [True, True, False]
        assert [[answer.id for answer in part.answers] for part in parts] == [[1], [2], [3]]
        assert [part.rows for part in parts] == [0, 0, 3]
        assert link.credits["zeros", "1"] == 2


async def test_a_batch_for_a_version_that_is_not_here_is_refused(link: Link) -> None:
    link.batch(1, ("scaled", "9"), [one(1)])
    (result,) = await link.result(1)
    assert result.answers[0].status.code == AWAY


# The life of the stream


async def test_it_attaches_again_with_all_that_it_has(gateway: Gateway, link: Link, worker: Worker) -> None:
    link.batch(1, SCALED, [one(1)])
    await link.result(1)
    link.hang_up()
    again = await gateway.link()
    assert again.hello.id == link.hello.id
    assert again.settled
    assert again.models[SCALED].state == READY
    assert again.credits == {SCALED: 2}
    assert await value(again, 1) == 2


async def test_it_waits_for_a_batcher_that_is_away_and_keeps_its_models_warm(repository: Path) -> None:
    gateway = Gateway()
    await gateway.start()
    async with Worker(gateway.address, Repository(repository)).running() as worker:
        await worker.load_all()
        first = await gateway.link()
        first.send(cancelled=[1])
        await gateway.stop()
        await first.until(lambda: first.ended)
        await gateway.start(gateway.address)
        second = await gateway.link()
        assert second.models[SCALED].state == READY
        assert await value(second, 1) == 2
        await gateway.stop()


async def test_results_of_a_broken_stream_are_dropped(gateway: Gateway, tmp_path: Path) -> None:
    zoo.write(tmp_path, "slow", "model_path: model.onnx\nwarmup: false\n", model_onnx=zoo.slow())
    key = ("slow", "1")
    body = request("slow", ("turns", np.array([300], np.int64)), datatype="INT64")
    async with Worker(gateway.address, Repository(tmp_path)).running() as worker:
        await worker.load_all()
        first = await gateway.link()
        await first.ready(key)
        first.batch(1, key, [item(1, body)])
        await first.load(1, "slow")
        first.hang_up()
        second = await gateway.link()
        # The same ids, as a batcher that was started anew would give them.
        second.batch(2, key, [item(1, body)])
        (result,) = await second.result(2)
        assert result.answers[0].response
        assert list(second.results) == [2]
        assert not first.results


async def test_it_counts_as_attached_only_once_the_batcher_has_answered(repository: Path) -> None:
    gateway = Gateway(answers=False)
    await gateway.start()
    async with Worker(gateway.address, Repository(repository)).running() as worker:
        link = await gateway.link()
        assert not worker.attachment.attached
        link.send()
        await value_of(lambda: worker.attachment.attached)
    await gateway.stop()


async def test_draining_answers_what_is_here_and_loses_no_result(link: Link, worker: Worker) -> None:
    link.batch(1, SCALED, [one(1)])
    link.batch(2, SCALED, [one(2)])
    await link.load(1, "scaled")
    await worker.attachment.drain()
    await worker.attachment.flush()
    await link.until(lambda: link.ended)
    assert link.draining
    assert sorted(link.results) == [1, 2]
    assert worker.attachment.attached is False


async def value_of(condition: Callable[[], bool]) -> None:
    """Returns once `condition()` holds, looking at each turn of the event loop."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


# Commands


async def test_a_new_folder_is_loaded_on_command(link: Link, repository: Path) -> None:
    assert await link.load(1, "fresh") == (NOT_FOUND, "the model repository has no model 'fresh'")
    zoo.write(repository, "fresh", "model_path: model.onnx\n", model_onnx=zoo.scaled(5))
    assert await link.load(2, "fresh") == (0, "")
    assert await value(link, 1, ("fresh", "1")) == 5


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../scaled", "x" * 300, "\0"])
async def test_a_name_that_is_no_folder_is_not_found(link: Link, name: str) -> None:
    code, _ = await link.load(1, name)
    assert code == NOT_FOUND
    assert await value(link, 1) == 2


async def test_a_changed_file_takes_the_place_of_the_old_one_without_a_gap(link: Link, repository: Path) -> None:
    assert await value(link, 1) == 2
    before = len(link.frames)
    rewrite(repository, zoo.scaled(3))
    assert await value(link, 2) == 2
    assert await link.load(1, "scaled") == (0, "")
    assert await value(link, 3) == 3
    assert link.credits[SCALED] == 2
    assert [version.state for frame in link.frames[before:] for version in frame.models] == [READY]


async def test_a_broken_file_is_told_each_time_and_the_old_model_goes_on(link: Link, repository: Path) -> None:
    for number, content in enumerate((b"no model", b"", zoo.scaled(1)[:-20])):
        rewrite(repository, content)
        for again in (0, 1):
            code, message = await link.load(10 * number + again, "scaled")
            assert code == INVALID_ARGUMENT
            assert "model.onnx" in message
            assert "\n" not in message
    assert await value(link, 1) == 2
    rewrite(repository, zoo.scaled(4))
    assert await link.load(99, "scaled") == (0, "")
    assert await value(link, 2) == 4


async def test_a_broken_description_is_told_with_its_line(link: Link, repository: Path) -> None:
    (repository / "scaled" / "model.yaml").write_text("model_path: model.onnx\ninstances: {count: many}\n")
    code, message = await link.load(1, "scaled")
    assert code == INVALID_ARGUMENT
    assert "model.yaml:2" in message
    assert await value(link, 1) == 2


async def test_an_unloaded_model_is_told_as_such_and_comes_back_on_command(link: Link) -> None:
    assert await link.unload(1, "scaled") == (0, "")
    version = link.models[SCALED]
    assert (version.state, version.reason) == (UNAVAILABLE, "unloaded")
    assert [spec.name for spec in version.inputs] == ["x"]
    # A batch that was on its way uses no credit of those that come later.
    link.batch(1, SCALED, [one(1)])
    (result,) = await link.result(1)
    assert result.answers[0].status.code == AWAY
    assert await link.load(2, "scaled") == (0, "")
    await link.ready(SCALED)
    assert link.credits[SCALED] == 2
    assert await value(link, 2) == 2


async def test_unloading_waits_for_the_batches_that_run(gateway: Gateway, tmp_path: Path) -> None:
    zoo.write(tmp_path, "slow", "model_path: model.onnx\nwarmup: false\n", model_onnx=zoo.slow())
    key = ("slow", "1")
    async with Worker(gateway.address, Repository(tmp_path)).running() as worker:
        await worker.load_all()
        link = await gateway.link()
        await link.ready(key)
        link.batch(1, key, [item(1, request("slow", ("turns", np.array([500], np.int64)), datatype="INT64"))])
        assert await link.unload(1, "slow") == (0, "")
        (result,) = link.results[1]
        assert result.answers[0].response
        assert (await link.unload(2, "other"))[0] == NOT_FOUND


async def test_a_model_that_was_unloaded_before_its_first_try_is_not_loaded(gateway: Gateway, repository: Path) -> None:
    async with Worker(gateway.address, Repository(repository)).running() as worker:
        link = await gateway.link()
        await link.unload(1, "scaled")
        await worker.load_all()
        await link.until(lambda: link.settled)
        assert link.models.get(SCALED) is None or link.models[SCALED].state != READY
        assert await link.load(2, "scaled") == (0, "")
        await link.ready(SCALED)


async def test_loading_what_has_not_changed_tells_of_it_again(link: Link) -> None:
    before = len(link.frames)
    assert await link.load(1, "scaled") == (0, "")
    assert [version.state for frame in link.frames[before:] for version in frame.models] == [READY]
    assert link.credits[SCALED] == 2


async def test_a_version_that_the_description_no_longer_names_is_forgotten(link: Link, repository: Path) -> None:
    folder = repository / "scaled"
    (folder / "two.onnx").write_bytes(zoo.scaled(20))
    (folder / "model.yaml").write_text('versions: {"2": {model_path: two.onnx, labels: [stable]}}\n')
    assert await link.load(1, "scaled") == (0, "")
    assert list(link.models) == [("scaled", "2")]
    assert await value(link, 1, ("scaled", "2")) == 20


async def test_one_broken_version_keeps_no_other_from_loading(link: Link, repository: Path) -> None:
    zoo.write(
        repository,
        "pair",
        'versions: {"1": {model_path: 1.onnx}, "2": {model_path: 2.onnx}}\n',
        _1_onnx=b"broken",
        _2_onnx=zoo.scaled(7),
    )
    code, _ = await link.load(1, "pair")
    assert code == INVALID_ARGUMENT
    assert link.models["pair", "1"].state == UNAVAILABLE
    assert "1.onnx" in link.models["pair", "1"].reason
    assert await value(link, 1, ("pair", "2")) == 7


async def test_a_command_that_fails_in_an_unforeseen_way_ends_that_command_alone(gateway: Gateway, repository: Path) -> None:
    class Broken(Repository):
        def fingerprint(self, name: str) -> Fingerprint:
            if name == "cursed":
                raise RuntimeError("the disk is on fire")
            return super().fingerprint(name)

    async with Worker(gateway.address, Broken(repository)).running() as worker:
        await worker.load_all()
        link = await gateway.link()
        code, message = await link.load(1, "cursed")
        assert code == INTERNAL
        assert "the disk is on fire" in message
        assert await link.load(2, "scaled") == (0, "")
