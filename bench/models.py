"""The models of the benchmarks, and one request for each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mcprun.demo.resnet import write_resnet50
from mcprun.demo.sources import ONNX
from mcprun.protocol.inference import grpc_service_pb2 as oip


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A model with one FP32 input and one FP32 output, and a free batch dimension."""

    name: str
    input: str
    output: str
    shape: tuple[int, ...]
    """Of one row of the input."""
    classes: int
    """Elements of one row of the output."""
    max_batch_size: int
    """For every server. Larger batches of ResNet-50 only cost memory on CPUs."""
    write: Callable[[Path], None]

    def data(self, rows: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
        """Made-up rows."""
        return np.random.default_rng(0).random((rows, *self.shape)).astype(np.float32)

    def request(self, name: str) -> oip.ModelInferRequest:
        """A request with one row for the model as a server calls it."""
        message = oip.ModelInferRequest(model_name=name)
        message.inputs.add(name=self.input, datatype="FP32", shape=(1, *self.shape))
        message.raw_input_contents.append(self.data(1).tobytes())
        return message


def _write_mlp(target: Path) -> None:
    random = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((random.standard_normal(shape) * 0.1).astype(np.float32), name)

    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 10])],
        [weights("w1", 64, 128), weights("b1", 128), weights("w2", 128, 10), weights("b2", 10)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(target))


def _write_resnet50(target: Path) -> None:
    write_resnet50(ONNX.file("onnx/backend/test/data/light/light_resnet50.onnx"), target)


MLP = BenchModel("mlp", "x", "y", (64,), 10, 64, _write_mlp)
RESNET50 = BenchModel("resnet50", "data", "prob", (3, 224, 224), 1000, 16, _write_resnet50)
