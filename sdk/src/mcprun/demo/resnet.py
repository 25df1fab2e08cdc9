"""ResNet-50 with made-up weights: the graph that the `onnx` package carries for its own tests, which has no weights.

It is as heavy as a trained one and gives finite probabilities, so it is fit for load, not for answers.
"""

from pathlib import Path
from typing import Any

SEED = 50
INPUT, OUTPUT = "data", "prob"
_RESIDUAL_GAIN = 0.3
"""Scale of the last batch normalisation before each addition, which keeps sums over 16 blocks from growing."""


def write_resnet50(graph_file: Path, target: Path) -> None:
    """Reads the weightless graph and writes it with weights, a free batch dimension and short names for input and output."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = onnx.load(str(graph_file)).graph
    random = np.random.default_rng(SEED)
    constants = {initializer.name: numpy_helper.to_array(initializer) for initializer in graph.initializer}
    consumers = {name: (node.op_type, place) for node in graph.node for place, name in enumerate(node.input)}
    producers = {name: node for node in graph.node for name in node.output}

    weights: dict[str, Any] = {}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shape = [int(extent) for extent in constants.pop(node.input[0])]
            weights[node.output[0]] = _weight(*consumers[node.output[0]], shape, random)
        else:
            nodes.append(node)
    for node in nodes:
        if node.op_type == "Sum":
            for name in node.input:
                branch = producers[name]
                if branch.op_type == "BatchNormalization":
                    weights[branch.input[1]] = weights[branch.input[1]] * np.float32(_RESIDUAL_GAIN)
        elif node.op_type == "Reshape":
            # It flattens for a batch of one; 0 keeps whatever the batch is.
            constants[node.input[1]] = np.array([0, -1], np.int64)

    used = {name for node in nodes for name in node.input}
    data = next(value.name for value in graph.input if value.name in used and value.name not in constants and value.name not in weights)
    prob = graph.output[0].name
    for node in nodes:
        node.input[:] = [INPUT if name == data else name for name in node.input]
        node.output[:] = [OUTPUT if name == prob else name for name in node.output]
    initializers = [numpy_helper.from_array(array, name) for name, array in {**constants, **weights}.items() if name in used]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "resnet50",
            [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["N", 3, 224, 224])],
            [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["N", 1000])],
            initializers,
        ),
        opset_imports=[helper.make_opsetid("", 9)],
        ir_version=8,
        producer_name="mcprun",
    )
    onnx.checker.check_model(model)
    onnx.save(model, str(target))


def _weight(operator: str, place: int, shape: list[int], random: Any) -> Any:
    """An initial value for the input at `place` of an operator: He et al.'s for convolutions, an identity for normalisations."""
    import numpy as np

    match operator, place:
        case "Conv", 1:
            array = random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        case "Gemm", 1:
            array = random.standard_normal(shape) * 0.02
        case "BatchNormalization", (1 | 4):
            array = np.ones(shape)
        case _:
            array = np.zeros(shape)
    return array.astype(np.float32)
