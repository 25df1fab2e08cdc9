"""Small real models for the tests, built with the onnx package."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ONNX_TYPE = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "BYTES": TensorProto.STRING,
}
DATATYPES = tuple(ONNX_TYPE)
LABELS = tuple(f"class-{index}" for index in range(16))

Shape = Sequence[int | str]


def tensor(name: str, datatype: str, shape: Shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ONNX_TYPE[datatype], list(shape))


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Sequence[onnx.TensorProto] = (),
) -> bytes:
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(constants))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


def write(repository: Path, name: str, config: str, **files: bytes) -> Path:
    """A model's folder. Files are named by keyword, with `__` for a slash and `_onnx` at the end for `.onnx`."""
    folder = repository / name
    for key, content in files.items():
        path = folder / f"{key.removesuffix('_onnx').replace('__', '/').lstrip('_')}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "model.yaml").write_text(config)
    return folder


def identity(datatype: str, shape: Shape = ("N", "M")) -> bytes:
    return model([helper.make_node("Identity", ["x"], ["y"])], [tensor("x", datatype, shape)], [tensor("y", datatype, shape)])


def scaled(factor: float) -> bytes:
    """y = factor × x, FP32 [N, 4]."""
    return model(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        [tensor("x", "FP32", ("N", 4))],
        [tensor("y", "FP32", ("N", 4))],
        [numpy_helper.from_array(np.array(factor, np.float32), "factor")],
    )


def mlp() -> bytes:
    """64 → 128 → 10, FP32, softmax at the end."""
    rng = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) * 0.1).astype(np.float32), name)

    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"], axis=1),
    ]
    constants = [weights("w1", 64, 128), weights("b1", 128), weights("w2", 128, 10), weights("b2", 10)]
    return model(nodes, [tensor("x", "FP32", ("N", 64))], [tensor("y", "FP32", ("N", 10))], constants)


def add_sub() -> bytes:
    """Two inputs and two outputs, INT32 [N, 16], as in many clients' examples."""
    names = ("INPUT0", "INPUT1")
    return model(
        [helper.make_node("Add", names, ["OUTPUT0"]), helper.make_node("Sub", names, ["OUTPUT1"])],
        [tensor(name, "INT32", ("N", 16)) for name in names],
        [tensor(name, "INT32", ("N", 16)) for name in ("OUTPUT0", "OUTPUT1")],
    )


def divide() -> bytes:
    """y = x / 0, FP32 [N, 3]: NaN and infinities."""
    return model(
        [helper.make_node("Div", ["x", "zero"], ["y"])],
        [tensor("x", "FP32", ("N", 3))],
        [tensor("y", "FP32", ("N", 3))],
        [numpy_helper.from_array(np.zeros((), np.float32), "zero")],
    )


def zeros() -> bytes:
    """As many FP32 zeros as the request says: count INT64 [1] → y [count]. Has no batch dimension."""
    return model(
        [helper.make_node("ConstantOfShape", ["count"], ["y"])], [tensor("count", "INT64", (1,))], [tensor("y", "FP32", ("size",))]
    )


def slow() -> bytes:
    """Multiplies matrices as often as the request says: turns INT64 [1] → y FP32 [1]. Has no batch dimension."""
    size = 256
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "matrix"], ["next"]),
            helper.make_node("Identity", ["going"], ["still_going"]),
        ],
        "body",
        [tensor("turn", "INT64", ()), tensor("going", "BOOL", ()), tensor("state", "FP32", (size, size))],
        [tensor("still_going", "BOOL", ()), tensor("next", "FP32", (size, size))],
        [numpy_helper.from_array(np.eye(size, dtype=np.float32), "matrix")],
    )
    nodes = [
        helper.make_node("Squeeze", ["turns"], ["limit"]),
        helper.make_node("Loop", ["limit", "", "start"], ["end"], body=body),
        helper.make_node("Slice", ["end", "begin", "one"], ["corner"]),
        helper.make_node("Reshape", ["corner", "single"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.eye(size, dtype=np.float32), "start"),
        numpy_helper.from_array(np.array([0, 0], np.int64), "begin"),
        numpy_helper.from_array(np.array([1, 1], np.int64), "one"),
        numpy_helper.from_array(np.array([1], np.int64), "single"),
    ]
    return model(nodes, [tensor("turns", "INT64", (1,))], [tensor("y", "FP32", (1,))], constants)


def channel_means() -> bytes:
    """The mean of each channel: FP32 [N, 3, 8, 8] → [N, 3]."""
    return model(
        [helper.make_node("ReduceMean", ["image"], ["means"], axes=[2, 3], keepdims=0)],
        [tensor("image", "FP32", ("N", 3, 8, 8))],
        [tensor("means", "FP32", ("N", 3))],
    )


def build(repository: Path) -> Path:
    """All of them, in a repository."""
    for datatype in DATATYPES:
        write(repository, f"identity_{datatype.lower()}", "model_path: model.onnx\n", model_onnx=identity(datatype))
    write(repository, "mlp", "model_path: model.onnx\n", model_onnx=mlp())
    write(
        repository,
        "add_sub",
        f"model_path: model.onnx\nlabels: [{', '.join(LABELS)}]\n",
        model_onnx=add_sub(),
    )
    write(
        repository,
        "versions",
        'versions:\n  "1": {model_path: 1/model.onnx, labels: [stable]}\n  "2": {model_path: 2/model.onnx, labels: [canary]}\n',
        _1__model_onnx=scaled(1),
        _2__model_onnx=scaled(2),
    )
    write(repository, "divide", "model_path: model.onnx\n", model_onnx=divide())
    write(repository, "zeros", "model_path: model.onnx\n", model_onnx=zeros())
    write(repository, "slow", "model_path: model.onnx\ninstances: {threads: 1}\n", model_onnx=slow())
    write(repository, "single", "model_path: model.onnx\n", model_onnx=identity("FP32", (3,)))
    write(
        repository,
        "means",
        "model_path: model.onnx\n"
        "preprocess:\n- decode\n- resize: {size: [8, 8]}\n- cast: FP32\n- layout: CHW\n"
        "dynamic_batching: {max_batch_size: 16, max_wait_ms: 50, dispatch_when_idle: false, min_batch_ratio: 1}\n",
        model_onnx=channel_means(),
    )
    return repository
