"""model.yaml: what it means, and how its mistakes are told."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprun.model.config import ModelConfig, ModelConfigError, load_model_config
from mcprun.model.repository import model_folders
from mcprun.model.steps import ByteWindow, Cast, Crop, Decode, Layout, Normalize, Resize, Tokenize, TopK

Load = Callable[[str], ModelConfig]
Mistakes = Callable[[str], list[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    for name in ("model.onnx", "1/model.onnx", "tokenizer.json"):
        (folder / name).touch()
    (folder / "labels.txt").write_text("cat\ndog\n")
    return folder


@pytest.fixture
def load(folder: Path) -> Load:
    def load(text: str) -> ModelConfig:
        (folder / "model.yaml").write_text(text)
        return load_model_config(folder / "model.yaml")

    return load


@pytest.fixture
def mistakes(folder: Path, load: Load) -> Mistakes:
    def mistakes(text: str) -> list[str]:
        with pytest.raises(ModelConfigError) as caught:
            load(text)
        assert all(problem.file == folder / "model.yaml" for problem in caught.value.problems)
        return [f"{problem.line}:{problem.column} {problem.field}: {problem.message}" for problem in caught.value.problems]

    return mistakes


def test_the_shortest_file_has_one_stable_version(load: Load) -> None:
    config = load("model_path: model.onnx")
    assert config.name == "m"
    assert {number: (version.model_path, version.labels) for number, version in config.versions.items()} == {
        "1": ("model.onnx", ("stable",))
    }
    assert config.backend == "onnxruntime"
    assert config.dynamic_batching is None
    assert config.source is None
    assert config.warmup


def test_versions_may_be_written_as_numbers(load: Load) -> None:
    config = load("versions:\n  1: {model_path: 1/model.onnx, labels: [stable]}\n  2: {model_path: model.onnx, labels: [canary]}\n")
    assert list(config.versions) == ["1", "2"]
    assert config.versions["2"].labels == ("canary",)


def test_shorthands_are_resolved(load: Load) -> None:
    config = load("model_path: model.onnx\ninput_shape: [-1, 3]\noutput_names: [b, a]\n")
    assert config.inputs is not None
    assert config.outputs is not None
    assert [(tensor.name, tensor.shape) for tensor in config.inputs] == [("*", (-1, 3))]
    assert [tensor.name for tensor in config.outputs] == ["b", "a"]


def test_steps_may_be_bare_names_single_values_or_mappings(load: Load) -> None:
    config = load(
        """
model_path: model.onnx
preprocess:
  - decode
  - resize: 256
  - crop: [224, 200]
  - cast: FP32
  - normalize: {scale: 0.5, mean: [1, 2, 3], std: 2}
  - layout
postprocess: [softmax, top_k: 3]
"""
    )
    assert config.preprocess == (
        Decode(),
        Resize(size=256),
        Crop(size=(224, 200)),
        Cast(datatype="FP32"),
        Normalize(scale=0.5, mean=(1, 2, 3), std=(2,)),
        Layout(order="CHW"),
    )
    assert config.postprocess[1] == TopK(k=3)
    assert config.source == Decode()


def test_sources_of_text_and_files(load: Load) -> None:
    assert load("model_path: model.onnx\npreprocess: [{tokenize: {max_length: 8}}]").source == Tokenize(max_length=8)
    assert load("model_path: model.onnx\npreprocess: [byte_window]").source == ByteWindow()


def test_labels_come_from_a_file_or_a_list(load: Load, folder: Path) -> None:
    assert load("model_path: model.onnx\nlabels: labels.txt").class_labels(folder) == ("cat", "dog")
    assert load("model_path: model.onnx\nlabels: [a, b]").class_labels(folder) == ("a", "b")
    assert load("model_path: model.onnx").class_labels(folder) == ()


def test_batching_may_be_off_or_tuned(load: Load) -> None:
    assert load("model_path: model.onnx\ndynamic_batching: false").dynamic_batching is False
    tuned = load("model_path: model.onnx\ndynamic_batching: {max_batch_size: 8, max_wait_ms: 0}").dynamic_batching
    assert tuned
    assert (tuned.max_batch_size, tuned.max_wait_ms, tuned.min_batch_ratio) == (8, 0, 0.3)


def test_anchors_and_merges_are_plain_yaml(load: Load) -> None:
    config = load("versions:\n  '1': &v {model_path: model.onnx, labels: [stable]}\n  '2': {<<: *v, labels: []}\n")
    assert config.versions["2"].model_path == "model.onnx"
    assert config.versions["2"].labels == ()


def test_every_mistake_is_told_at_once_with_its_place(mistakes: Mistakes) -> None:
    told = mistakes(
        """nam: m
backend: 3
model_path: ../model.onnx
preprocess:
  - decode: {mod: RGB}
  - resize
  - normalize: {std: 0}
  - resze: 3
postprocess: [top_k: -1, softmax]
instances: {count: "2"}
warmup: yes
"""
    )
    assert [line.split(":")[0] + ":" + line.split(":")[1].split()[0] for line in told] == sorted(
        (line.split(":")[0] + ":" + line.split(":")[1].split()[0] for line in told),
        key=lambda place: [int(number) for number in place.split(":")],
    )
    text = "\n".join(told)
    for expected in (
        "1:1 nam: expected one of",
        "(did you mean 'name'?)",
        "2:1 backend: expected text, got 3",
        "3:1 model_path: expected a path inside the model's folder, got '../model.onnx'",
        "5:14 preprocess[0].decode.mod: expected one of mode, max_pixels, got 'mod' (did you mean 'mode'?)",
        "6:5 preprocess[1].resize.size: expected a value, got nothing",
        "7:17 preprocess[2].normalize.std: expected a number that is not 0, got 0",
        "8:5 preprocess[3].resze: expected one of decode, resize",
        "9:15 postprocess[0].top_k: expected more than 0, got -1",
        "9:15 postprocess[0]: expected top_k as the last step, got softmax after it",
        "10:13 instances.count: expected a whole number, got '2'",
        "11:1 warmup: expected true or false, got 'yes'",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "1:1 : expected a mapping of fields, got an empty file"),
        ("# nothing\n", "1:1 : expected a mapping of fields, got an empty file"),
        ("- a\n", "1:1 : expected a mapping of fields, got a list"),
        ("hello", "1:1 : expected a mapping of fields, got 'hello'"),
        ("a: b: c", "1:5 : expected YAML, got mapping values are not allowed here"),
        ("name: m\nmodel_path: [\n", "3:1 : expected YAML, got expected the node content, but found '<stream end>'"),
        (
            "model_path: model.onnx\nmodel_path: 1/model.onnx",
            "2:1 model_path: expected each field once, got 'model_path' again (first on line 1)",
        ),
        ("name: other\nmodel_path: model.onnx", "1:1 name: expected the folder's name, 'm', got 'other'"),
        ("name: m", "1:1 model_path: expected model_path or versions, got neither"),
        ("model_path:", "1:1 model_path: expected model_path or versions, got nothing"),
        ('model_path: "a\\0b"', "1:1 model_path: expected a file in "),
        (f"model_path: {'x' * 300}", "1:1 model_path: expected a file in "),
        ("model_path: labels.txt/x", "1:1 model_path: expected a file in "),
        ("model_path: gone.onnx", "1:1 model_path: expected a file in "),
        ("model_path: '1'", "1:1 model_path: expected a file, got '1', which is a folder"),
        ("model_path: /etc/passwd", "1:1 model_path: expected a path inside the model's folder, got '/etc/passwd'"),
        ("versions: {}", "1:1 versions: expected at least 1 values, got an empty mapping"),
        ("versions: {a: {model_path: model.onnx}}", "1:12 versions.a: expected a version number, such as 1, got 'a'"),
        ("versions: {01: {model_path: model.onnx}}", "1:12 versions.01: expected a version number, such as 1, got '01'"),
        ("versions: {1: {labels: [x]}}", "1:12 versions.1.model_path: expected a value, got nothing"),
        (
            "versions: {1: {model_path: model.onnx, label: [x]}}",
            "1:40 versions.1.label: expected one of model_path, labels, got 'label' (did you mean 'labels'?)",
        ),
        (
            "versions:\n  1: {model_path: model.onnx, labels: [a]}\n  2: {model_path: model.onnx, labels: [a]}",
            "3:40 versions.2.labels[0]: expected each label on one version, got 'a' again, after version 1",
        ),
        (
            "model_path: model.onnx\nversions: {1: {model_path: model.onnx}}",
            "1:1 model_path: expected either model_path or versions, got both",
        ),
        ("model_path: !!python/object:os.system x", "1:13 model_path: expected a plain value, got the tag"),
        ("model_path: !include x", "1:13 model_path: expected a plain value, got the tag !include"),
        ("? [a]\n: b\nmodel_path: model.onnx", "1:3 : expected a name as key, got a list"),
        ("model_path: model.onnx\n---\na: b", "2:1 : expected YAML"),
    ],
)
def test_a_mistake_is_told_with_its_place(mistakes: Mistakes, text: str, told: str) -> None:
    assert any(line.startswith(told) for line in mistakes(text)), mistakes(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("input_shape: [1, x]", "18 input_shape[1]: expected a whole number, got 'x'"),
        ("input_shape: 3", "1 input_shape: expected a list, got 3"),
        ("input_shape: [-2]", "15 input_shape[0]: expected at least -1, got -2"),
        ("output_names: x", "1 output_names: expected a list of names, got 'x'"),
        ("output_names: [1]", "16 output_names[0]: expected text, got 1"),
        ("output_names: [a, a]", "19 output_names[1]: expected each name once, got 'a' again"),
        ("inputs: [{name: a, datatype: FP33}]", "20 inputs[0].datatype: expected 'BOOL', 'UINT8'"),
        ("preprocess: decode", "1 preprocess: expected a list of steps, got 'decode'"),
        (
            "preprocess: [{decode: {}, crop: 1}]",
            "14 preprocess[0]: expected a step, which is a name or a mapping of one key, such as decode, got 2 keys",
        ),
        ("preprocess: [decode, normalize: 3]", "22 preprocess[1].normalize: expected a mapping of options, got 3"),
        ("preprocess: [decode, crop: [1, 2, 3]]", "22 preprocess[1].crop: expected at most 2 values, got [1, 2, 3]"),
        (
            "preprocess: [decode, resize: {size: [1, 2], fit: short_side}]",
            "31 preprocess[1].resize.size: expected one number with fit: short_side, got [1, 2]",
        ),
        ("preprocess: [resize: 3]", "14 preprocess[0]: expected a decode step before resize, got none"),
        ("preprocess: [decode, layout, crop: 1]", "30 preprocess[2]: expected crop before cast, normalize and layout, got it after layout"),
        (
            "preprocess: [cast: FP32, decode]",
            "26 preprocess[1]: expected decode as the first step, since it takes BYTES, got it after cast",
        ),
        ("preprocess: [tokenize, cast: FP32]", "24 preprocess[1]: expected no step after tokenize, got cast"),
        ("preprocess: [tokenize: x.json]", "14 preprocess[0].tokenize: expected a file in "),
        ("preprocess: [{softmax: {}}]", "15 preprocess[0].softmax: expected one of decode"),
        ("postprocess: [softmax: {axis: 1}]", "25 postprocess[0].softmax.axis: expected no options, got 'axis'"),
        ("postprocess: [mean_pool]", "15 postprocess[0]: expected a tokenize step, whose attention mask mean_pool needs, got none"),
        (
            "preprocess_input: x",
            "1 preprocess_input: expected a preprocess chain that begins with decode or tokenize or byte_window, got none",
        ),
        ("labels: 3", "1 labels: expected text, got 3"),
        ("labels: [a, 3]", "13 labels[1]: expected text, got 3"),
        ("dynamic_batching: true", "1 dynamic_batching: expected a mapping, got true"),
        ("dynamic_batching: {max_batch_size: 0}", "20 dynamic_batching.max_batch_size: expected at least 1, got 0"),
        ("dynamic_batching: {min_batch_ratio: .nan}", "20 dynamic_batching.min_batch_ratio: expected a finite number, got nan"),
        ("instances: {threads: true}", "13 instances.threads: expected a whole number, got true"),
    ],
)
def test_a_mistake_in_one_line_is_told_with_its_column(mistakes: Mistakes, text: str, told: str) -> None:
    lines = mistakes("model_path: model.onnx\n" + text)
    assert any(line.startswith(f"2:{told}") for line in lines), lines


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=r"model\.yaml:1:1: expected a file that can be read, got no such file or directory"):
        load_model_config(tmp_path / "model.yaml")


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").mkdir()
    with pytest.raises(ModelConfigError, match="got is a directory"):
        load_model_config(tmp_path / "model.yaml")


def test_bytes_that_are_no_text(folder: Path) -> None:
    (folder / "model.yaml").write_bytes(b"name: m\nx: \xff")
    with pytest.raises(ModelConfigError, match=r"model\.yaml:2:4: expected UTF-8 text, got the byte 0xff"):
        load_model_config(folder / "model.yaml")


def test_aliases_cannot_blow_a_file_up(mistakes: Mistakes) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 9)]
    assert any("at most 200000 values" in line for line in mistakes("\n".join(lines)))


def test_an_alias_to_itself_ends(mistakes: Mistakes) -> None:
    assert mistakes("labels: &a [*a]")


def test_a_symbolic_link_may_lead_out_of_the_folder(load: Load, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.onnx").touch()
    (folder / "linked.onnx").symlink_to(tmp_path / "elsewhere.onnx")
    assert load("model_path: linked.onnx").versions["1"].model_path == "linked.onnx"


@given(st.text(alphabet=st.sampled_from("abc:[]{}-&*!|>'\"#%@` \n\t,?0.~<"), max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.yaml"
        path.write_text(text)
        with pytest.raises(ModelConfigError) as caught:
            load_model_config(path)
        assert all(problem.line >= 1 and problem.column >= 1 for problem in caught.value.problems)


def test_a_repository_lists_folders_with_a_model_yaml(tmp_path: Path) -> None:
    for name in ("b", "a", ".hidden", "empty"):
        (tmp_path / name).mkdir()
        if name != "empty":
            (tmp_path / name / "model.yaml").touch()
    (tmp_path / "file").touch()
    assert [folder.name for folder in model_folders(tmp_path)] == ["a", "b"]
