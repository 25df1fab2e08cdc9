"""model.yaml: one model, all its versions."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Strict, Tag, field_validator

from mcprun.document import ConfigError, read
from mcprun.mistakes import Mistake, validate
from mcprun.model.fields import Flag, InsidePath, Name, Number, Positive, Text, Whole
from mcprun.model.normalise import normalise
from mcprun.model.steps import SOURCES, PostprocessStep, PreprocessStep, Step

FILENAME = "model.yaml"
ANY_INPUT = "*"
"""The name of an input that is the model file's only one, whatever that calls it (`input_shape`)."""

DatatypeName = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16", "BYTES"
]

ModelConfigError = ConfigError


def _version_number(value: str) -> str:
    if not (value.isascii() and value.isdigit() and len(value) <= 18) or value.startswith("0"):
        raise Mistake("a version number, such as 1", repr(value))
    return value


VersionNumber = Annotated[str, Strict(), AfterValidator(_version_number)]


class Part(BaseModel):
    """A part of model.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class TensorConfig(Part):
    """One input or output of the model file."""

    name: Text = Field(description="Its name in the model file")
    datatype: DatatypeName | None = Field(default=None, description="Its datatype; left out: read from the file")
    shape: tuple[Annotated[Whole, Field(ge=-1)], ...] | None = Field(
        default=None, description="Its shape, -1 where an extent is free, with the batch dimension; left out: read from the file"
    )


class VersionConfig(Part):
    """One version of the model."""

    model_path: InsidePath = Field(description="The model file, in the model's folder")
    labels: tuple[Name, ...] = Field(default=(), description="Names that stand for this version, such as stable and canary")


class DynamicBatching(Part):
    """How requests are joined."""

    max_batch_size: Annotated[Whole, Field(ge=1, le=65_536)] = Field(default=64, description="The most rows in one batch")
    max_wait_ms: Annotated[Number, Field(ge=0, le=60_000)] = Field(
        default=15, description="The longest that a request waits for company, in milliseconds"
    )
    min_batch_ratio: Annotated[Number, Field(ge=0, le=1)] = Field(
        default=0.3, description="A batch closes early once it holds this share of max_batch_size"
    )
    dispatch_when_idle: Flag = Field(default=True, description="Whether a request is run at once when an instance is idle")
    max_queue_size: Positive = Field(default=1024, description="The most requests that may wait")
    max_queue_bytes: Annotated[Whole, Field(ge=1)] = Field(
        default=256 * 1024 * 1024, description="The most bytes of requests that may wait"
    )


class Instances(Part):
    """How many batches run at the same time in one worker."""

    count: Annotated[Whole, Field(ge=1, le=64)] = Field(default=1, description="Batches at the same time")
    threads: Annotated[Whole, Field(ge=0, le=1024)] = Field(
        default=0, description="Threads of one instance; 0: the worker's cores divided by count"
    )


def _labels_kind(value: Any) -> str:
    return "list" if isinstance(value, list | tuple) else "file"


def _batching_kind(value: Any) -> str:
    return "off" if value is False else "on"


class ModelConfig(Part):
    """model.yaml, normalised: the shorthands of the file are resolved."""

    shorthands: ClassVar[tuple[str, ...]] = ("model_path", "input_shape", "output_names")
    """What the file may have beside the fields."""

    name: Name = Field(description="The model's name; left out: its folder's")
    backend: Text = Field(default="onnxruntime", description="What runs the model file")
    versions: dict[VersionNumber, VersionConfig] = Field(min_length=1, description="The versions by their number")
    inputs: tuple[TensorConfig, ...] | None = Field(
        default=None, min_length=1, description="Left out: read from the model file; given: checked against it"
    )
    outputs: tuple[TensorConfig, ...] | None = Field(
        default=None, min_length=1, description="The outputs that are served, in this order; left out: all of the model file's"
    )
    preprocess: tuple[PreprocessStep, ...] = Field(default=(), description="What is done with a request before the model runs")
    preprocess_input: Text | None = Field(default=None, description="The name of the input that a chain beginning with BYTES takes")
    postprocess: tuple[PostprocessStep, ...] = Field(default=(), description="What is done with the model's output")
    labels: Annotated[Annotated[InsidePath, Tag("file")] | Annotated[tuple[Text, ...], Tag("list")], Discriminator(_labels_kind)] | None = (
        Field(default=None, description="Class labels: a file in the model's folder, one a line, or a list")
    )
    dynamic_batching: (
        Annotated[Annotated[DynamicBatching, Tag("on")] | Annotated[Literal[False], Tag("off")], Discriminator(_batching_kind)] | None
    ) = Field(default=None, description="false: never join requests; left out: joined when the model file has a batch dimension")
    instances: Instances = Field(default_factory=Instances, description="How many batches run at the same time in one worker")
    warmup: Flag = Field(default=True, description="Whether the model is run once before it counts as ready")

    @field_validator("versions")
    @classmethod
    def _one_version_a_label(cls, versions: dict[str, VersionConfig]) -> dict[str, VersionConfig]:
        owners: dict[str, str] = {}
        for number, version in versions.items():
            for index, label in enumerate(version.labels):
                owner = owners.setdefault(label, number)
                if owner != number or label in version.labels[:index]:
                    raise Mistake("each label on one version", f"{label!r} again, after version {owner}", below=(number, "labels", index))
        return versions

    @field_validator("inputs", "outputs")
    @classmethod
    def _each_name_once(cls, tensors: tuple[TensorConfig, ...] | None) -> tuple[TensorConfig, ...] | None:
        names = [tensor.name for tensor in tensors or ()]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise Mistake("each name once", f"{name!r} again", below=(index, "name"))
        return tensors

    @property
    def source(self) -> Step | None:
        """The step that takes BYTES, when the chain begins with one."""
        return self.preprocess[0] if self.preprocess and self.preprocess[0].kind in SOURCES else None

    def class_labels(self, folder: Path) -> tuple[str, ...]:
        """The class labels by index; empty when there are none. Raises OSError when their file cannot be read."""
        if isinstance(self.labels, str):
            return tuple((folder / self.labels).read_text(encoding="utf-8").splitlines())
        return self.labels or ()


def load_model_config(path: Path) -> ModelConfig:
    """Reads a model.yaml. Raises ModelConfigError, which tells every mistake by file, line, column and field."""
    document = read(path)
    values, problems = normalise(document)
    return validate(document, ModelConfig, values, problems=problems)
