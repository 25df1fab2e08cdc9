"""What may share a batch, and what fits a model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprun.errors import InvalidInput
from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun.protocol.v1 import batcher_pb2, model_pb2
from mcprun_router.catalog import Catalog, Model
from mcprun_router.validation import check


def model(*inputs: tuple[str, str, list[int]], max_batch_size: int = 8) -> Model:
    catalog = Catalog()
    version = model_pb2.ModelVersion(
        name="m",
        version="1",
        state=model_pb2.MODEL_STATE_READY,
        inputs=[model_pb2.TensorSpec(name=name, datatype=datatype, shape=shape) for name, datatype, shape in inputs],
        outputs=[model_pb2.TensorSpec(name="y", datatype="FP32", shape=[-1])],
        batching=model_pb2.BatchingPolicy(max_batch_size=max_batch_size),
    )
    catalog.update(batcher_pb2.Catalog(models=[version], settled=True))
    return catalog.resolve("m", "")


def request(*tensors: tuple[str, list[int]]) -> oip.ModelInferRequest:
    made = oip.ModelInferRequest(model_name="m")
    for name, shape in tensors:
        made.inputs.add(name=name, datatype="FP32", shape=shape)
        made.raw_input_contents.append(np.zeros(max(0, int(np.prod(shape))), np.float32).tobytes())
    return made


FREE = model(("a", "FP32", [-1, -1]), ("b", "FP32", [-1, 2]))


def test_requests_of_different_free_extents_have_different_keys() -> None:
    first = check(request(("a", [1, 3]), ("b", [1, 2])), FREE)
    assert first.rows == 1
    assert check(request(("a", [5, 3]), ("b", [5, 2])), FREE).shape_key == first.shape_key
    assert check(request(("a", [1, 4]), ("b", [1, 2])), FREE).shape_key != first.shape_key


def test_the_order_of_the_inputs_does_not_matter_for_the_key() -> None:
    assert check(request(("b", [1, 2]), ("a", [1, 3])), FREE).shape_key == check(request(("a", [1, 3]), ("b", [1, 2])), FREE).shape_key


def test_fixed_shapes_all_share_one_key() -> None:
    fixed = model(("a", "FP32", [-1, 3]))
    assert check(request(("a", [8, 3])), fixed).shape_key == b""


def test_a_model_without_a_batch_counts_as_one_row() -> None:
    single = model(("a", "FP32", [-1]), max_batch_size=0)
    assert check(request(("a", [100])), single).rows == 1


@given(st.lists(st.integers(-3, 5), max_size=4))
def test_exactly_the_shapes_that_fit_pass(shape: list[int]) -> None:
    fits = len(shape) == 2 and shape[0] >= 0 and shape[1] >= 0
    target = model(("a", "FP32", [-1, -1]))
    if fits:
        assert check(request(("a", shape)), target).rows == shape[0]
    else:
        with pytest.raises(InvalidInput, match="'a'"):
            check(request(("a", shape)), target)
