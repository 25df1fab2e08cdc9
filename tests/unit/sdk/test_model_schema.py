"""The published JSON schema says what the loader says."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from mcprun.model.config import ModelConfigError, load_model_config
from mcprun.model.schema import model_schema, text

PUBLISHED = Path(__file__).parents[3] / "docs" / "model.schema.json"

GOOD = [
    "{model_path: model.onnx}",
    "{name: m, backend: other, model_path: model.onnx, warmup: false}",
    "{versions: {'1': {model_path: model.onnx, labels: [stable]}, '12': {model_path: model.onnx}}}",
    "{model_path: model.onnx, input_shape: [-1, 3], output_names: [a]}",
    "{model_path: model.onnx, inputs: [{name: a, datatype: FP32, shape: [-1, 3]}], outputs: [{name: b}]}",
    "{model_path: model.onnx, preprocess: [decode, resize: 256, crop: [1, 2], cast: FP32, {normalize: {mean: [1], std: 2}}, layout: CHW]}",
    "{model_path: model.onnx, preprocess: [{decode: {mode: L}}, {resize: {size: [3, 4], fit: exact}}, normalize]}",
    "{model_path: model.onnx, preprocess: [tokenize], postprocess: [mean_pool, l2_normalize]}",
    "{model_path: model.onnx, preprocess: [{byte_window: {head: 1, tail: 0}}], postprocess: [softmax, top_k: 3], labels: [a, b]}",
    "{model_path: model.onnx, preprocess: [{byte_window: }], preprocess_input: file, postprocess: [top_k], labels: labels.txt}",
    "{model_path: model.onnx, dynamic_batching: false, instances: {count: 2}}",
    "{model_path: model.onnx, dynamic_batching: {max_batch_size: 8, max_wait_ms: 2.5, min_batch_ratio: 1}}",
]
BAD = [
    "{}",
    "{nam: m, model_path: model.onnx}",
    "{model_path: model.onnx, versions: {'1': {model_path: model.onnx}}}",
    "{versions: {}}",
    "{versions: {'0': {model_path: model.onnx}}}",
    "{versions: {'1': {}}}",
    "{model_path: 3}",
    "{model_path: model.onnx, warmup: 1}",
    "{model_path: model.onnx, name: ' '}",
    "{model_path: model.onnx, input_shape: [1], inputs: [{name: a}]}",
    "{model_path: model.onnx, inputs: [{name: a, datatype: FP33}]}",
    "{model_path: model.onnx, inputs: [{datatype: FP32}]}",
    "{model_path: model.onnx, inputs: []}",
    "{model_path: model.onnx, output_names: [1]}",
    "{model_path: model.onnx, preprocess: [resize]}",
    "{model_path: model.onnx, preprocess: [decode, cast]}",
    "{model_path: model.onnx, preprocess: [nothing]}",
    "{model_path: model.onnx, preprocess: decode}",
    "{model_path: model.onnx, preprocess: [{decode: {mod: L}}]}",
    "{model_path: model.onnx, preprocess: [decode, {crop: 1, resize: 1}]}",
    "{model_path: model.onnx, preprocess: [decode, crop: [1, 2, 3]]}",
    "{model_path: model.onnx, preprocess: [decode, crop: 0]}",
    "{model_path: model.onnx, preprocess: [softmax]}",
    "{model_path: model.onnx, postprocess: [top_k: x]}",
    "{model_path: model.onnx, postprocess: [softmax: {axis: 1}]}",
    "{model_path: model.onnx, labels: 3}",
    "{model_path: model.onnx, dynamic_batching: true}",
    "{model_path: model.onnx, dynamic_batching: {max_batch_size: 0}}",
    "{model_path: model.onnx, instances: {count: 65}}",
]


def accepted(instance: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(model_schema()).is_valid(instance))


def test_the_published_schema_is_up_to_date() -> None:
    assert PUBLISHED.read_text() == text(), "run: python -m mcprun.model.schema docs/model.schema.json"


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(text()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "m"
    folder.mkdir()
    for name in ("model.onnx", "tokenizer.json", "labels.txt"):
        (folder / name).touch()
    return folder


@pytest.mark.parametrize("example", GOOD)
def test_both_accept(folder: Path, example: str) -> None:
    (folder / "model.yaml").write_text(example)
    load_model_config(folder / "model.yaml")
    assert accepted(YAML(typ="safe").load(example))


@pytest.mark.parametrize("example", BAD)
def test_both_refuse(folder: Path, example: str) -> None:
    (folder / "model.yaml").write_text(example)
    with pytest.raises(ModelConfigError):
        load_model_config(folder / "model.yaml")
    assert not accepted(YAML(typ="safe").load(example))
