"""Makes the sample model that `mcprun init` copies: `python make_sample.py`. Needs the package `onnx`.

The model names colours: a linear layer whose scores rank the names by the distance of their colour from the one that is asked
for. It is kept beside the code, as a few hundred bytes of package data, so that a workspace can be made where `onnx` is not installed.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SAMPLE = Path(__file__).parent / "src" / "mcprun" / "sample" / "colors"

COLORS: dict[str, tuple[int, int, int]] = {
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "gray": (128, 128, 128),
    "red": (220, 20, 30),
    "orange": (255, 140, 0),
    "yellow": (250, 230, 30),
    "green": (30, 150, 50),
    "cyan": (0, 200, 210),
    "blue": (30, 70, 210),
    "purple": (120, 40, 160),
    "pink": (250, 150, 190),
    "brown": (120, 70, 30),
}
SHARPNESS = 25.0
"""How sure the model is of the nearest colour."""


def sample_model() -> onnx.ModelProto:
    """RGB between 0 and 1, FP32 [N, 3], to logits, FP32 [N, 12]."""
    palette = np.array(list(COLORS.values()), np.float64) / 255
    # -|x - c|² is 2 x·c - |c|² up to what is the same for every colour.
    weights = (2 * SHARPNESS * palette.T).astype(np.float32)
    bias = (-SHARPNESS * (palette**2).sum(axis=1)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["rgb", "weights", "bias"], ["logits"])],
        "colors",
        [helper.make_tensor_value_info("rgb", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", len(COLORS)])],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(bias, "bias")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="mcprun")
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Writes the model and its labels."""
    (SAMPLE / "1").mkdir(parents=True, exist_ok=True)
    (SAMPLE / "1" / "model.onnx").write_bytes(sample_model().SerializeToString(deterministic=True))
    (SAMPLE / "labels.txt").write_text("\n".join(COLORS) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
