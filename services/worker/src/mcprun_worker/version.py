"""One loaded model version: its session, its pipeline, and what the mesh is told of it."""

import io
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from PIL import Image

from mcprun.datatypes import DATATYPES
from mcprun.errors import InvalidInput
from mcprun.model.config import DynamicBatching, ModelConfig, TensorConfig
from mcprun.model.steps import Decode, Tokenize
from mcprun.protocol.v1 import model_pb2
from mcprun.runtime import logs
from mcprun_worker.backends.base import Array, Session, TensorSpec, find
from mcprun_worker.chain.pipeline import Arrays, Pipeline

_log = logs.get_logger(__name__)

_WARMUP_EXTENT = 8
_WARM_RUNS = 5
_SMALL_SECONDS = 0.002
_WORTH = 1.3
"""One thread is kept when it takes at most this many times as long: the other cores are then free for other work."""


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """A model version that can run."""

    name: str
    version: str
    session: Session
    pipeline: Pipeline
    batching: DynamicBatching | None
    """None: requests are not joined, and the first dimension is like any other."""
    instances: int
    announcement: model_pb2.ModelVersion

    @property
    def key(self) -> tuple[str, str]:
        """Name and version."""
        return self.name, self.version

    @property
    def max_batch_size(self) -> int:
        """The most rows in one batch, 0 when requests are not joined."""
        return self.batching.max_batch_size if self.batching else 0

    def warm_up(self) -> float | None:
        """Runs the model through its whole chain on zeros or a made-up element, and returns the seconds of a warm run.

        None when the model does not take that: zeros need not be an input that every model accepts.
        """
        try:
            inputs = self._sample_inputs()
            self.pipeline.run(inputs)
            best = float("inf")
            for _ in range(_WARM_RUNS):
                started = time.perf_counter()
                self.pipeline.run(inputs)
                best = min(best, time.perf_counter() - started)
                if best > _SMALL_SECONDS:
                    break
        except Exception as error:
            _log.warning("warm-up failed", model=self.name, version=self.version, error=str(error))
            return None
        return best

    def _sample_inputs(self) -> Arrays:
        preprocess = self.pipeline.preprocess
        if preprocess.source is not None:
            return preprocess.finish([preprocess.prepare([_sample(preprocess.source)])])
        arrays: Arrays = {}
        for spec in preprocess.inputs:
            shape = tuple(extent if extent >= 0 else _WARMUP_EXTENT for extent in spec.shape)
            array = _zeros(spec, (1, *shape[1:]) if self.batching else shape)
            arrays[spec.name] = array if preprocess.empty else preprocess.transform(array)
        return arrays


def load(config: ModelConfig, folder: Path, number: str, *, threads: int, device: str) -> LoadedVersion:
    """Loads one version of a model and warms it up. `threads` is the worker's cores. Raises MeshError with what is wrong.

    Where model.yaml leaves the threads of an instance open, a model that answers within `_SMALL_SECONDS` is also tried with one
    thread, which for small graphs is faster: waking a second thread costs more than it saves.
    """
    share = max(1, threads // config.instances.count)
    version = _load(config, folder, number, threads=config.instances.threads or share, device=device)
    if not config.warmup:
        return version
    seconds = version.warm_up()
    if config.instances.threads or share == 1 or seconds is None or seconds > _SMALL_SECONDS:
        return version
    single = _load(config, folder, number, threads=1, device=device)
    single_seconds = single.warm_up()
    better, worse = (single, version) if single_seconds is not None and single_seconds <= seconds * _WORTH else (version, single)
    worse.session.close()
    return better


def _load(config: ModelConfig, folder: Path, number: str, *, threads: int, device: str) -> LoadedVersion:
    backend = find(config.backend)
    session = backend.load(folder / config.versions[number].model_path, threads=threads, device=device)
    try:
        _check("inputs", config.inputs, session.inputs, complete=True)
        _check("outputs", config.outputs, session.outputs, complete=False)
        batching = _batching(config, session)
        pipeline = Pipeline(config, folder, session, batches=batching is not None)
    except BaseException:
        session.close()
        raise
    return LoadedVersion(
        name=config.name,
        version=number,
        session=session,
        pipeline=pipeline,
        batching=batching,
        instances=config.instances.count,
        announcement=_announcement(config, number, backend.platform, pipeline, batching),
    )


def _announcement(
    config: ModelConfig, number: str, platform: str, pipeline: Pipeline, batching: DynamicBatching | None
) -> model_pb2.ModelVersion:
    policy = model_pb2.BatchingPolicy()
    queue = batching or DynamicBatching()
    policy.max_queue_size, policy.max_queue_bytes = queue.max_queue_size, queue.max_queue_bytes
    if batching:
        policy.max_batch_size = batching.max_batch_size
        policy.max_wait_ns = int(batching.max_wait_ms * 1e6)
        policy.min_batch_ratio = batching.min_batch_ratio
        policy.dispatch_when_idle = batching.dispatch_when_idle
    labels = pipeline.postprocess.labels
    version = config.versions[number]
    return model_pb2.ModelVersion(
        name=config.name,
        version=number,
        labels=version.labels,
        backend=config.backend,
        platform=platform,
        inputs=[_spec(spec, (), batches=batching is not None) for spec in pipeline.signature.inputs],
        outputs=[_spec(spec, labels.get(spec.name, ()), batches=batching is not None) for spec in pipeline.signature.outputs],
        batching=policy,
        instances=config.instances.count,
        state=model_pb2.MODEL_STATE_READY,
        model_filename=version.model_path,
        config_json=orjson.dumps(config.model_dump(mode="json")).decode(),
    )


def _spec(spec: TensorSpec, labels: tuple[str, ...], *, batches: bool) -> model_pb2.TensorSpec:
    shape = (-1, *spec.shape[1:]) if batches and spec.shape else spec.shape
    return model_pb2.TensorSpec(name=spec.name, datatype=spec.datatype, shape=shape, labels=labels)


def _check(what: str, told: tuple[TensorConfig, ...] | None, found: tuple[TensorSpec, ...], *, complete: bool) -> None:
    """Compares what model.yaml says of the graph with the graph."""
    if told is None:
        return
    by_name = {spec.name: spec for spec in found}
    if len(told) == 1 and told[0].name == "*":
        if len(found) != 1:
            raise InvalidInput(f"input_shape: only a model with one input can have it, the model file has {', '.join(by_name)}")
        told = (told[0].model_copy(update={"name": found[0].name}),)
    for tensor in told:
        spec = by_name.get(tensor.name)
        if spec is None:
            raise InvalidInput(f"{what}: the model file has {', '.join(by_name)}, got {tensor.name!r}")
        if tensor.datatype is not None and tensor.datatype != spec.datatype:
            raise InvalidInput(f"{what}: {tensor.name!r} is {spec.datatype} in the model file, got {tensor.datatype}")
        if tensor.shape is not None and not _compatible(tensor.shape, spec.shape):
            raise InvalidInput(f"{what}: {tensor.name!r} has the shape {list(spec.shape)} in the model file, got {list(tensor.shape)}")
    missing = sorted(by_name.keys() - {tensor.name for tensor in told})
    if complete and missing:
        raise InvalidInput(f"{what}: the model file also has {', '.join(missing)}")


def _compatible(told: tuple[int, ...], found: tuple[int, ...]) -> bool:
    if len(told) != len(found):
        return False
    pairs = list(zip(told, found, strict=True))
    # The first dimension may be written as 1, as in many examples, where the file leaves it free.
    return all(extent in (want, -1) or (want == -1 and index == 0) for index, (want, extent) in enumerate(pairs))


def _batching(config: ModelConfig, session: Session) -> DynamicBatching | None:
    """How requests are joined: as model.yaml says, else only where the graph shows that its first dimension is a batch."""
    if config.dynamic_batching is False:
        return None
    tensors = (*session.inputs, *session.outputs)
    fixed = next((spec for spec in tensors if not spec.shape or spec.shape[0] != -1), None)
    if isinstance(config.dynamic_batching, DynamicBatching):
        if fixed is not None:
            raise InvalidInput(f"dynamic_batching: a free first dimension is needed, but {fixed.name!r} has {list(fixed.shape)}")
        return config.dynamic_batching
    if fixed is not None:
        return None
    symbols = {spec.symbols[0] if spec.symbols else "" for spec in tensors}
    named = len(symbols) == 1 and _means_batch(next(iter(symbols)))
    return DynamicBatching() if named or (config.source is not None and len(session.inputs) == 1) else None


def _means_batch(symbol: str) -> bool:
    return symbol.lower() in ("n", "b") or "batch" in symbol.lower()


def _zeros(spec: TensorSpec, shape: tuple[int, ...]) -> Array:
    if spec.datatype == "BYTES":
        return np.full(shape, "", object)
    return np.zeros(shape, DATATYPES[spec.datatype].numpy)


def _sample(source: object) -> bytes:
    if isinstance(source, Decode):
        target = io.BytesIO()
        Image.new("RGB", (64, 64), (127, 127, 127)).save(target, "PNG")
        return target.getvalue()
    return b"warm up" if isinstance(source, Tokenize) else b"warm up\n" * 16
