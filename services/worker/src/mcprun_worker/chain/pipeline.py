"""A chain between what clients see and what the graph takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from mcprun.datatypes import DATATYPES
from mcprun.errors import InvalidInput
from mcprun.model.config import ModelConfig
from mcprun.model.steps import (
    ByteWindow,
    Cast,
    Crop,
    Decode,
    L2Normalize,
    Layout,
    MeanPool,
    Normalize,
    Resize,
    Softmax,
    Step,
    Tokenize,
    TopK,
)
from mcprun_worker.backends.base import Array, Session, TensorSpec
from mcprun_worker.chain import files, images, scores, text
from mcprun_worker.chain.arrays import CHW, HWC, batch_step
from mcprun_worker.chain.shapes import Rows, source_rows

Arrays = dict[str, Array]
ElementT = TypeVar("ElementT")
RowStep = Callable[[Array], Array]
BatchStep = Callable[[Array], Array]

_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, slots=True)
class Signature:
    """What clients see of a model version."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class Preprocess:
    """From the inputs of clients to those of the graph.

    A chain that begins with a source step takes one BYTES input, whose elements are prepared one by one, so that a bad one
    is refused alone; what all have in common is then done on the whole batch at once.
    """

    def __init__(self, config: ModelConfig, folder: Path, graph: Sequence[TensorSpec], *, batches: bool) -> None:
        self.source = config.source
        self._graph = tuple(graph)
        self._names = {spec.name for spec in graph}
        self._tokenizer: text.TextTokenizer | None = None
        self._decode: Callable[[bytes], Array] | None = None
        self._row_steps: list[RowStep] = []
        self._batch_steps: list[BatchStep] = []
        self._max_pixels = 0
        self._prepared = Rows("FP32", ())
        """What the steps that go one by one give."""
        steps = list(config.preprocess)
        if isinstance(self.source, Tokenize):
            self._use_tokenizer(self.source, folder)
        elif steps:
            self._target = self._only_input(steps[0].kind)
            if isinstance(self.source, Decode):
                step = self.source
                self._decode = lambda encoded: images.decode(step, encoded)
                self._max_pixels = step.max_pixels
            elif isinstance(self.source, ByteWindow):
                window = self.source
                self._decode = lambda content: files.byte_window(window, content)
            self._plan(steps[1:] if self.source else steps)
            self._check_fit(steps)
        self.inputs = self._signature(config, batches=batches)

    @property
    def empty(self) -> bool:
        """Whether the graph gets what the client sent."""
        return self.source is None and not self._batch_steps

    def prepare(self, elements: Sequence[bytes]) -> Array | list[str]:
        """The elements of one request through the steps that go one by one: texts, or one array [N, ...].

        Raises InvalidInput, which says which element is bad.
        """
        if self._tokenizer is not None:
            return [_element(index, text.text_of, element) for index, element in enumerate(elements)]
        rows = [_element(index, self._row, element) for index, element in enumerate(elements)]
        if not rows:
            return np.zeros((0, *(abs(extent) for extent in self._prepared.shape)), DATATYPES[self._prepared.datatype].numpy)
        for index, row in enumerate(rows):
            if row.shape != rows[0].shape:
                raise InvalidInput(f"element {index}: {list(rows[0].shape)} expected as element 0 has, got {list(row.shape)}")
        return np.stack(rows)

    def finish(self, prepared: Sequence[Array | list[str]]) -> Arrays:
        """What the graph takes, for the prepared requests of one batch, which have the same shapes."""
        if self._tokenizer is not None:
            tokens = self._tokenizer.encode([one for texts in prepared for one in texts])
            return {name: tokens[name] for name in text.INPUTS if name in self._names}
        arrays = [part for part in prepared if isinstance(part, np.ndarray)]
        return {self._target: self.transform(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))}

    def transform(self, batch: Array) -> Array:
        """The steps over a whole batch."""
        for step in self._batch_steps:
            batch = step(batch)
        return batch

    def _row(self, element: bytes) -> Array:
        if self._decode is None:
            raise TypeError("a chain without a source step has no elements")
        row = self._decode(element)
        for step in self._row_steps:
            row = step(row)
        return row

    def _only_input(self, step: str) -> str:
        if len(self._graph) != 1:
            names = ", ".join(spec.name for spec in self._graph)
            raise InvalidInput(f"preprocess: {step} needs a model with one input, got {names}")
        return self._graph[0].name

    def _use_tokenizer(self, step: Tokenize, folder: Path) -> None:
        strange = sorted(self._names - set(text.INPUTS))
        if strange:
            raise InvalidInput(f"preprocess: tokenize gives {', '.join(text.INPUTS)}, but the model also takes {', '.join(strange)}")
        if "input_ids" not in self._names:
            raise InvalidInput("preprocess: tokenize gives input_ids, which the model does not take")
        for spec in self._graph:
            if spec.datatype != "INT64" or len(spec.shape) != 2:
                raise InvalidInput(f"preprocess: tokenize gives INT64 [N, T], but {spec.name!r} is {spec.datatype} {list(spec.shape)}")
        self._tokenizer = text.TextTokenizer(step, folder)

    def _plan(self, steps: Sequence[Step]) -> None:
        order, channels = self._start(steps)
        for step in steps:
            if isinstance(step, Resize | Crop):
                if not isinstance(self.source, Decode):
                    raise InvalidInput(f"preprocess: {step.kind} needs the pixels of a decode step")
                if self._batch_steps:
                    raise InvalidInput(f"preprocess: {step.kind} must come before cast, normalize and layout")
                self._row_steps.append(images.row_step(step, max_pixels=self._max_pixels))
            elif isinstance(step, Cast | Normalize | Layout):
                if isinstance(step, Normalize) and channels is not None:
                    for name, values in (("mean", step.mean), ("std", step.std)):
                        if len(values) not in (1, channels):
                            raise InvalidInput(f"preprocess: normalize.{name} needs 1 or {channels} numbers, got {len(values)}")
                self._batch_steps.append(batch_step(step, order=order))
                order = step.order if isinstance(step, Layout) else order

    def _check_fit(self, steps: Sequence[Step]) -> None:
        """Raises InvalidInput when the chain does not give what the graph takes."""
        graph = self._graph[0]
        if isinstance(self.source, Decode | ByteWindow):
            rows, steps = source_rows(self.source), steps[1:]
        else:
            rows = Rows("FP32", self._signature_shape(steps)[1:])
        for step in steps:
            if isinstance(step, Resize | Crop):
                rows = rows.after(step)
        self._prepared = rows
        for step in steps:
            if not isinstance(step, Resize | Crop):
                rows = rows.after(step)
        rows.check(graph)

    def _start(self, steps: Sequence[Step]) -> tuple[str, int | None]:
        """How the channels lie before the steps, and how many there are (None where that is not known)."""
        if isinstance(self.source, Decode):
            return HWC, 1 if self.source.mode == "L" else 3
        shape = self._graph[0].shape
        if isinstance(self.source, ByteWindow) or len(shape) != 4:
            return HWC, (shape[-1] if shape and shape[-1] > 0 and len(shape) > 1 else None)
        order = CHW if shape[1] in _CHANNELS else HWC
        channels = shape[1] if order == CHW else shape[3]
        for step in reversed(steps):
            if isinstance(step, Layout):
                order = HWC if step.order == CHW else CHW
        return order, channels if channels > 0 else None

    def _signature(self, config: ModelConfig, *, batches: bool) -> tuple[TensorSpec, ...]:
        if self.source is not None:
            name = config.preprocess_input or ("text" if self._tokenizer is not None else self._graph[0].name)
            return (TensorSpec(name, "BYTES", (-1,) if batches else (1,)),)
        if not self._batch_steps:
            return self._graph
        return (TensorSpec(self._graph[0].name, "FP32", self._signature_shape(config.preprocess)),)

    def _signature_shape(self, steps: Sequence[Step]) -> tuple[int, ...]:
        """What a client sends to a chain without a source step: the shape of the graph's input before the channels moved."""
        shape = self._graph[0].shape
        for step in reversed(steps):
            if isinstance(step, Layout) and len(shape) == 4:
                axes = (0, 2, 3, 1) if step.order == CHW else (0, 3, 1, 2)
                shape = tuple(shape[axis] for axis in axes)
        return shape


class Postprocess:
    """From the outputs of the graph to those that clients see. Steps work on the first output that is served."""

    def __init__(self, config: ModelConfig, folder: Path, graph: Sequence[TensorSpec]) -> None:
        self._steps = config.postprocess
        try:
            self._labels = config.class_labels(folder)
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"labels: the file {config.labels} cannot be read as text: {error}") from error
        served = list(graph)
        if config.outputs is not None:
            by_name = {spec.name: spec for spec in graph}
            for wanted in config.outputs:
                if wanted.name not in by_name:
                    raise InvalidInput(f"outputs: the model file has {', '.join(by_name)}, got {wanted.name!r}")
            served = [by_name[wanted.name] for wanted in config.outputs]
        if not served:
            raise InvalidInput("outputs: the model has none")
        self.graph_outputs = tuple(spec.name for spec in served)
        self._main = served[0].name
        self.labels: dict[str, tuple[str, ...]] = {}
        self.outputs = self._signature(served)

    @property
    def empty(self) -> bool:
        """Whether clients get what the graph gives."""
        return not self._steps

    def run(self, outputs: Sequence[Array], inputs: Mapping[str, Array]) -> Arrays:
        """What clients see, by name, in the order of the signature."""
        named = dict(zip(self.graph_outputs, outputs, strict=True))
        name, main = self._main, named.pop(self._main)
        result: Arrays = {}
        for step in self._steps:
            if isinstance(step, MeanPool):
                name, main = step.output, scores.mean_pool(main, inputs["attention_mask"])
            elif isinstance(step, L2Normalize):
                main = scores.l2_normalize(main)
            elif isinstance(step, Softmax):
                main = scores.softmax(main)
            elif isinstance(step, TopK):
                result["labels"], result["scores"] = scores.top_k(main, step.k, self._labels)
        if not result:
            result[name] = main
        return {**result, **named}

    def _signature(self, served: list[TensorSpec]) -> tuple[TensorSpec, ...]:
        main, rest = served[0], served[1:]
        first: tuple[TensorSpec, ...] = (main,)
        for index, step in enumerate(self._steps):
            where = f"postprocess[{index}].{step.kind}"
            if main.datatype not in ("FP16", "FP32", "FP64"):
                raise InvalidInput(f"{where}: a model output of floating-point numbers is expected, got {main.datatype}")
            if isinstance(step, MeanPool):
                if len(main.shape) != 3:
                    raise InvalidInput(f"{where}: token vectors of shape [N, T, H] are expected, got {list(main.shape)}")
                main = TensorSpec(step.output, "FP32", (main.shape[0], main.shape[2]))
            elif isinstance(step, Softmax):
                main = TensorSpec(main.name, "FP32", main.shape)
            elif isinstance(step, TopK):
                if len(main.shape) < 2:
                    raise InvalidInput(f"{where}: scores of shape [N, C] are expected, got {list(main.shape)}")
                classes = 1
                for extent in main.shape[1:]:
                    classes = -1 if extent < 0 or classes < 0 else classes * extent
                k = step.k if classes < 0 else min(step.k, classes)
                if self._labels and classes > 0 and len(self._labels) != classes:
                    raise InvalidInput(f"labels: one for each of {classes} classes expected, got {len(self._labels)}")
                first = (TensorSpec("labels", "BYTES", (main.shape[0], k)), TensorSpec("scores", "FP32", (main.shape[0], k)))
                break
            first = (main,)
        if self._labels and first == (main,):
            self.labels[main.name] = self._labels
        names = [spec.name for spec in (*first, *rest)]
        if len(set(names)) != len(names):
            raise InvalidInput(f"postprocess: the outputs {', '.join(names)} have names twice")
        return (*first, *rest)


class Pipeline:
    """A graph with its chains."""

    def __init__(self, config: ModelConfig, folder: Path, session: Session, *, batches: bool) -> None:
        self.preprocess = Preprocess(config, folder, session.inputs, batches=batches)
        self.postprocess = Postprocess(config, folder, session.outputs)
        if any(isinstance(step, MeanPool) for step in config.postprocess) and "attention_mask" not in (one.name for one in session.inputs):
            raise InvalidInput("postprocess: mean_pool needs the attention mask, which the model does not take")
        self.signature = Signature(self.preprocess.inputs, self.postprocess.outputs)
        self._session = session

    def run(self, inputs: Arrays) -> Arrays:
        """Runs the graph on what it takes, and the postprocess chain on what it gives."""
        outputs = self._session.run(inputs, self.postprocess.graph_outputs)
        if self.postprocess.empty:
            return dict(zip(self.postprocess.graph_outputs, outputs, strict=True))
        return self.postprocess.run(outputs, inputs)


def _element(index: int, step: Callable[[bytes], ElementT], element: bytes) -> ElementT:
    try:
        return step(element)
    except InvalidInput as error:
        raise InvalidInput(f"element {index}: {error.message}") from None
