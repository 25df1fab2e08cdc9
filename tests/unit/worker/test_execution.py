"""A batch from its bytes to its answers: each item gets its own, and a bad one hurts no other."""

import math
from pathlib import Path

import numpy as np
import pytest
import zoo

from mcprun.errors import Cancelled, DeadlineExceeded, InvalidInput, MeshError, MessageTooLarge, ResourceExhausted
from mcprun.model.config import load_model_config
from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun_worker.execution import Executor, Item, Outcome
from mcprun_worker.version import load

TRUNCATED = oip.ModelInferRequest(
    inputs=[oip.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 4])], raw_input_contents=[b"abc"]
)


def executor(tmp_path: Path, onnx: bytes, config: str = "", *, limit: int = 1 << 20) -> Executor:
    folder = zoo.write(tmp_path, "m", f"model_path: model.onnx\n{config}", model_onnx=onnx)
    version = load(load_model_config(folder / "model.yaml"), folder, "1", threads=1, device="cpu")
    return Executor(version, too_large=MessageTooLarge(limit), clock=lambda: 100.0)


def item(number: int, data: "np.ndarray", *, name: str = "x", datatype: str = "FP32", deadline: float = math.inf, id: str = "") -> Item:  # type: ignore[type-arg]
    request = oip.ModelInferRequest(model_name="m", id=id, raw_input_contents=[data.tobytes()])
    request.inputs.add(name=name, datatype=datatype, shape=data.shape)
    return Item(number, request.SerializeToString(), len(data), deadline)


def answer(outcome: Outcome, number: int) -> oip.ModelInferResponse:
    raw = outcome.answers[number]
    assert isinstance(raw, bytes), raw
    return oip.ModelInferResponse.FromString(raw)


def error(outcome: Outcome, number: int) -> MeshError:
    refused = outcome.answers[number]
    assert isinstance(refused, MeshError)
    return refused


def nobody(number: int) -> bool:
    return False


def test_items_of_different_rows_are_joined_and_split_again(tmp_path: Path) -> None:
    data = {number: np.arange(4 * rows, dtype=np.float32).reshape(rows, 4) + number for number, rows in ((1, 2), (2, 0), (3, 1), (4, 3))}
    outcome = executor(tmp_path, zoo.scaled(3)).run([item(k, v, id=f"id{k}") for k, v in data.items()], nobody)
    assert outcome.rows == 6
    for number, sent in data.items():
        got = answer(outcome, number)
        assert got.id == f"id{number}"
        assert (got.model_name, got.model_version) == ("m", "1")
        assert list(got.outputs[0].shape) == list(sent.shape)
        np.testing.assert_array_equal(np.frombuffer(got.raw_output_contents[0], np.float32).reshape(sent.shape), 3 * sent)


def test_what_nobody_waits_for_is_not_run(tmp_path: Path) -> None:
    one = np.ones((1, 4), np.float32)
    outcome = executor(tmp_path, zoo.scaled(1)).run([item(1, one, deadline=100.0), item(2, one), item(3, one)], lambda key: key == 3)
    assert isinstance(error(outcome, 1), DeadlineExceeded)
    assert isinstance(error(outcome, 3), Cancelled)
    assert len(answer(outcome, 2).outputs) == 1
    assert (outcome.expired, outcome.cancelled, outcome.rows) == (1, 1, 1)


@pytest.mark.parametrize(
    "bad",
    [
        Item(2, b"no message", 1, math.inf),
        item(2, np.ones((1, 5), np.float32)),
        Item(
            2,
            oip.ModelInferRequest(
                inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 4]}], raw_input_contents=[b"abc"]
            ).SerializeToString(),
            1,
            math.inf,
        ),
    ],
)
def test_a_bad_item_that_slipped_through_fails_alone(tmp_path: Path, bad: Item) -> None:
    one = np.ones((1, 4), np.float32)
    outcome = executor(tmp_path, zoo.scaled(2)).run([item(1, one), bad, item(3, one)], nobody)
    assert isinstance(error(outcome, 2), InvalidInput)
    for number in (1, 3):
        assert answer(outcome, number).raw_output_contents[0] == (2 * one).tobytes()


def test_an_answer_over_the_limit_is_refused_and_the_others_are_not(tmp_path: Path) -> None:
    outcome = executor(tmp_path, zoo.identity("FP32"), limit=2048).run(
        [item(1, np.ones((1, 100), np.float32)), item(2, np.ones((10, 100), np.float32))], nobody
    )
    assert len(answer(outcome, 1).raw_output_contents[0]) == 400
    assert isinstance(error(outcome, 2), ResourceExhausted)
    assert "2048" in error(outcome, 2).message


def test_items_of_a_model_without_a_batch_dimension_run_one_by_one(tmp_path: Path) -> None:
    counts = [np.array([number], np.int64) for number in (3, 0, 5)]
    items = [item(number, count, name="count", datatype="INT64") for number, count in enumerate(counts)]
    outcome = executor(tmp_path, zoo.zeros()).run(items, nobody)
    assert [list(answer(outcome, number).outputs[0].shape) for number in range(3)] == [[3], [0], [5]]


def test_a_run_that_fails_for_one_item_fails_for_that_alone(tmp_path: Path) -> None:
    # A model of variable width: joined, the two widths do not fit; alone, each does.
    outcome = executor(tmp_path, zoo.identity("FP32"), "dynamic_batching: {}\n").run(
        [item(1, np.ones((1, 2), np.float32)), item(2, np.ones((1, 3), np.float32))], nobody
    )
    assert [list(answer(outcome, number).outputs[0].shape) for number in (1, 2)] == [[1, 2], [1, 3]]


def test_outputs_come_in_the_order_that_was_asked_for(tmp_path: Path) -> None:
    data = np.ones((1, 16), np.int32)
    request = oip.ModelInferRequest(raw_input_contents=[data.tobytes()] * 2)
    for name in ("INPUT1", "INPUT0"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
    for name in ("OUTPUT1", "OUTPUT0"):
        request.outputs.add(name=name)
    outcome = executor(tmp_path, zoo.add_sub()).run([Item(1, request.SerializeToString(), 1, math.inf)], nobody)
    assert [output.name for output in answer(outcome, 1).outputs] == ["OUTPUT1", "OUTPUT0"]
    assert answer(outcome, 1).raw_output_contents[1] == (2 * data).tobytes()
