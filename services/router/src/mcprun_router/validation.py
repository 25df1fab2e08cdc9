"""Whether a request fits its model. What passes here can be batched with others without hurting them."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mcprun.datatypes import DATATYPES, decode_bytes, element_count
from mcprun.errors import InvalidInput
from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun_router.catalog import Model, Tensor


@dataclass(frozen=True, slots=True)
class Fit:
    """How a valid request fits into batches."""

    rows: int
    """Rows of a batch that it fills; 1 for a model that does not batch."""
    shape_key: bytes
    """Equal for requests that may share a batch."""


def check(request: oip.ModelInferRequest, model: Model) -> Fit:
    """Checks a request whose tensors are all in raw_input_contents. Raises InvalidInput, which names the tensor, what was
    expected and what came.
    """
    inputs = request.inputs
    raw = request.raw_input_contents
    if len(raw) != len(inputs):
        raise InvalidInput(f"raw_input_contents must hold one entry for each of the {len(inputs)} inputs, got {len(raw)}")
    rows = -1
    seen: set[str] = set()
    extents: list[int] = []
    for position, tensor in enumerate(inputs):
        name = tensor.name
        spec = model.inputs.get(name)
        if spec is None:
            raise InvalidInput(f"input {name!r} is unknown: model {model.name!r} takes {_names(model.inputs)}")
        if name in seen:
            raise InvalidInput(f"input {name!r} is given twice")
        seen.add(name)
        shape = tuple(tensor.shape)
        _check_tensor(tensor.datatype, shape, spec, raw[position])
        if model.max_batch_size:
            if rows < 0:
                rows = shape[0]
            elif rows != shape[0]:
                raise InvalidInput(f"input {name!r}: all inputs must have the same number of rows, {rows} expected, got {shape[0]}")
            if model.varies:
                extents += shape
                extents.append(-1)
    if len(seen) != len(model.inputs):
        missing = _names(name for name in model.inputs if name not in seen)
        raise InvalidInput(f"input {missing} is missing: model {model.name!r} takes {_names(model.inputs)}")
    if request.outputs:
        _check_outputs([output.name for output in request.outputs], model)
    if not model.max_batch_size:
        return Fit(1, b"")
    if rows > model.max_batch_size:
        raise _too_many_rows(rows, model)
    if not model.varies:
        return Fit(rows, b"")
    return Fit(rows, _shape_key(seen, inputs, extents))


def _shape_key(seen: set[str], inputs: Sequence[oip.ModelInferRequest.InferInputTensor], extents: list[int]) -> bytes:
    if len(seen) == 1:
        return struct.pack(f"<{len(extents) - 1}q", *extents[1:])
    # The order of the inputs is the client's; the key must not depend on it.
    shapes = sorted((tensor.name, tuple(tensor.shape)[1:]) for tensor in inputs)
    return repr(shapes).encode()


def expect(model: Model, name: str, datatype: str, shape: tuple[int, ...]) -> Tensor:
    """Checks what is said of an input before its data is looked at, which may cost much. Returns what the model takes.

    Raises InvalidInput, as `check` does.
    """
    spec = model.inputs.get(name)
    if spec is None:
        raise InvalidInput(f"input {name!r} is unknown: model {model.name!r} takes {_names(model.inputs)}")
    _check_header(datatype, shape, spec)
    if model.max_batch_size and shape[0] > model.max_batch_size:
        raise _too_many_rows(shape[0], model)
    return spec


def _check_tensor(datatype: str, shape: tuple[int, ...], spec: Tensor, raw: bytes) -> None:
    _check_header(datatype, shape, spec)
    count = element_count(shape)
    if spec.itemsize:
        if len(raw) != count * spec.itemsize:
            raise InvalidInput(f"input {spec.name!r}: {count * spec.itemsize} bytes expected for {datatype} {list(shape)}, got {len(raw)}")
    else:
        decode_bytes(raw, count=count, tensor=spec.name)


def _check_header(datatype: str, shape: tuple[int, ...], spec: Tensor) -> None:
    if datatype != spec.datatype:
        if datatype not in DATATYPES:
            raise InvalidInput(f"input {spec.name!r}: datatype {datatype!r} is unknown, {spec.datatype} expected")
        raise InvalidInput(f"input {spec.name!r}: datatype {spec.datatype} expected, got {datatype}")
    if shape != spec.shape or -1 in shape:
        if len(shape) != len(spec.shape):
            raise _wrong_shape(shape, spec)
        for extent, expected in zip(shape, spec.shape, strict=True):
            if extent < 0 or (expected >= 0 and extent != expected):
                raise _wrong_shape(shape, spec)


def _too_many_rows(rows: int, model: Model) -> InvalidInput:
    return InvalidInput(f"the request has {rows} rows, but model {model.name!r} takes at most {model.max_batch_size} (max_batch_size)")


def _wrong_shape(shape: tuple[int, ...], spec: Tensor) -> InvalidInput:
    return InvalidInput(f"input {spec.name!r}: shape {list(spec.shape)} expected (-1 is free), got {list(shape)}")


def _check_outputs(names: list[str], model: Model) -> None:
    seen: set[str] = set()
    for name in names:
        if name not in model.outputs:
            raise InvalidInput(f"output {name!r} is unknown: model {model.name!r} gives {_names(model.outputs)}")
        if name in seen:
            raise InvalidInput(f"output {name!r} is asked for twice")
        seen.add(name)


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
