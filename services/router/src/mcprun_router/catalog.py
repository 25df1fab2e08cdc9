"""Which models there are, and which version a request means."""

from dataclasses import dataclass, field

from mcprun.datatypes import DATATYPES
from mcprun.errors import Loading, NotFound, Unavailable
from mcprun.protocol.v1 import batcher_pb2, model_pb2

READY = model_pb2.MODEL_STATE_READY
LOADING = model_pb2.MODEL_STATE_LOADING

STABLE = "stable"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output as clients see it."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    """-1 where an extent is free."""
    itemsize: int
    """Bytes of one element, 0 for BYTES."""


@dataclass(frozen=True, slots=True)
class Model:
    """One model version, prepared for the hot path."""

    name: str
    version: str
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    max_batch_size: int
    """0: requests are not joined, and the first dimension is like any other."""
    varies: bool
    """Whether requests of different shapes cannot share a batch."""
    description: model_pb2.ModelVersion

    @property
    def ready(self) -> bool:
        """Whether the next request is served without a cold start."""
        return self.description.state == READY

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the version."""
        return tuple(self.description.labels)


@dataclass(slots=True)
class _Versions:
    by_version: dict[str, Model] = field(default_factory=dict)
    by_label: dict[str, Model] = field(default_factory=dict)
    default: Model | None = None


class Catalog:
    """The models that the batcher told of last."""

    def __init__(self) -> None:
        self._models: dict[str, _Versions] = {}
        self.workers: list[batcher_pb2.WorkerInfo] = []
        self.settled = False
        """True once some worker has had its first try at every model."""

    def update(self, told: batcher_pb2.Catalog) -> None:
        """Takes over what the batcher tells. While no worker has settled, versions that it does not tell of are kept: a
        batcher that was just restarted knows nothing yet, and its workers will come back.
        """
        models = [_model(version) for version in told.models]
        if not told.settled:
            known = {(model.name, model.version) for model in models}
            models += [_away(model) for model in self.all() if (model.name, model.version) not in known]
        self._models = _index(models)
        self.workers = list(told.workers)
        self.settled = told.settled

    def all(self) -> list[Model]:
        """Every model version, by name and then by number."""
        return [model for name in sorted(self._models) for model in self._models[name].by_version.values()]

    def names(self) -> list[str]:
        """The models' names."""
        return sorted(self._models)

    def versions(self, name: str) -> list[Model]:
        """All versions of a model. Raises NotFound."""
        return list(self._find(name).by_version.values())

    def resolve(self, name: str, version: str, label: str = "") -> Model:
        """The version that a request means, ready or not.

        `version` is a number or a label and wins; `label` is what routing asks for and is followed where the model has it;
        else it is the version labelled stable, else the highest one that is ready, else the highest. Raises NotFound.
        """
        versions = self._models.get(name) or self._find(name)
        if version:
            model = versions.by_version.get(version) or versions.by_label.get(version)
            if model is None:
                raise NotFound(f"model {name!r} has no version {version!r}; it has {', '.join(versions.by_version)}")
            return model
        if label and (model := versions.by_label.get(label)) is not None:
            return model
        if versions.default is None:
            raise NotFound(f"model {name!r} has no versions")
        return versions.default

    def usable(self, name: str, version: str, label: str = "") -> Model:
        """As `resolve`, for a request that is to be run. Raises Unavailable when the version cannot run it.

        A version whose worker is away for a moment counts as usable: its requests wait in the queue.
        """
        model = self.resolve(name, version, label)
        state = model.description.state
        if state == READY or (state == LOADING and model.inputs):
            return model
        if state == LOADING:
            raise Loading(f"model {name!r} version {model.version} is still loading", retry_after=1.0)
        raise Unavailable(f"model {name!r} version {model.version} is not loaded: {model.description.reason}")

    def _find(self, name: str) -> _Versions:
        versions = self._models.get(name)
        if versions is not None:
            return versions
        if not self.settled:
            raise Loading(f"model {name!r} is not known yet: the mesh is starting", retry_after=1.0)
        raise NotFound(f"no model is named {name!r}")


def _index(models: list[Model]) -> dict[str, _Versions]:
    index: dict[str, _Versions] = {}
    for model in sorted(models, key=lambda model: (model.name, _number(model.version))):
        versions = index.setdefault(model.name, _Versions())
        versions.by_version[model.version] = model
        for label in model.labels:
            versions.by_label[label] = model
        if versions.default is None or model.ready or not versions.default.ready:
            versions.default = model
    for versions in index.values():
        versions.default = versions.by_label.get(STABLE, versions.default)
    return index


def _number(version: str) -> tuple[int, str]:
    return (int(version), "") if version.isdigit() else (0, version)


def _model(version: model_pb2.ModelVersion) -> Model:
    batches = version.batching.max_batch_size > 0
    return Model(
        name=version.name,
        version=version.version,
        inputs={spec.name: _tensor(spec) for spec in version.inputs},
        outputs={spec.name: _tensor(spec) for spec in version.outputs},
        max_batch_size=version.batching.max_batch_size,
        varies=batches and any(extent < 0 for spec in version.inputs for extent in spec.shape[1:]),
        description=version,
    )


def _tensor(spec: model_pb2.TensorSpec) -> Tensor:
    datatype = DATATYPES.get(spec.datatype)
    return Tensor(spec.name, spec.datatype, tuple(spec.shape), datatype.itemsize if datatype else 0)


def _away(model: Model) -> Model:
    version = model_pb2.ModelVersion()
    version.CopyFrom(model.description)
    if version.state == READY:
        version.state = LOADING
        version.reason = "its worker is away"
    return _model(version)
