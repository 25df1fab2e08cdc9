"""A format of the user's own: a backend that another distribution brings through an entry point."""

import subprocess
import sys
from pathlib import Path

PLUGIN = """
import numpy as np
from mcprun.errors import InvalidInput
from mcprun_worker.backends.base import TensorSpec

class Session:
    inputs = (TensorSpec("x", "FP32", (-1, 2), ("N", "")),)
    outputs = (TensorSpec("y", "FP32", (-1, 2), ("N", "")),)

    def __init__(self, factor):
        self.factor = factor

    def run(self, inputs, outputs):
        return [inputs["x"] * np.float32(self.factor)]

    def close(self):
        pass

class Backend:
    platform = "factor_text"

    def load(self, path, *, threads, device):
        try:
            return Session(float(path.read_text()))
        except ValueError as error:
            raise InvalidInput(f"{path.name}: a number is expected, got {error}") from error
"""

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from mcprun.errors import InvalidInput
from mcprun.model.config import load_model_config
from mcprun_worker.version import load

folder = Path(sys.argv[1])
config = load_model_config(folder / "model.yaml")
version = load(config, folder, "1", threads=1, device="cpu")
assert version.announcement.platform == "factor_text"
assert version.max_batch_size == 64
assert version.pipeline.run({"x": np.ones((1, 2), np.float32)})["y"].tolist() == [[2.5, 2.5]]
(folder / "factor.txt").write_text("nothing")
try:
    load(config, folder, "1", threads=1, device="cpu")
except InvalidInput as error:
    assert "factor.txt" in error.message
else:
    raise AssertionError("a broken file was loaded")
"""


def test_a_backend_of_another_distribution_loads_and_runs_its_own_format(tmp_path: Path) -> None:
    site = tmp_path / "site"
    metadata = site / "factor-1.dist-info"
    metadata.mkdir(parents=True)
    (site / "factor.py").write_text(PLUGIN)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: factor\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[mcprun.backends]\nfactor = factor:Backend\n")
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "factor.txt").write_text("2.5")
    (folder / "model.yaml").write_text("backend: factor\nmodel_path: factor.txt\n")
    subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(site)!r})\n{PROGRAM}", str(folder)], check=True, timeout=60)
