"""Typed tensor contents to raw bytes."""

import numpy as np

from mcprun.datatypes import DATATYPES, encode_bytes
from mcprun.errors import InvalidInput
from mcprun.protocol.inference import grpc_service_pb2 as oip

_FIELDS = tuple(oip.InferTensorContents.DESCRIPTOR.fields_by_name)


def to_raw(tensor: oip.ModelInferRequest.InferInputTensor) -> bytes:
    """The raw form of an input whose elements came as typed contents, row by row, little-endian.

    Raises InvalidInput, naming the tensor, when they came in a field of another type or do not fit the datatype.
    """
    datatype = DATATYPES[tensor.datatype]
    used = [name for name in _FIELDS if len(getattr(tensor.contents, name))]
    if not datatype.contents:
        raise InvalidInput(f"input {tensor.name!r}: {datatype.name} elements must come in raw_input_contents")
    wrong = [name for name in used if name != datatype.contents]
    if wrong:
        raise InvalidInput(f"input {tensor.name!r}: {datatype.name} elements are expected in {datatype.contents}, got {', '.join(wrong)}")
    values = getattr(tensor.contents, datatype.contents)
    if datatype.name == "BYTES":
        return encode_bytes(values)
    array = np.array(values)
    target = np.dtype(datatype.numpy)
    if target.kind in "iu" and array.size:
        bounds = np.iinfo(target)
        outside = (array < bounds.min) | (array > bounds.max)
        if outside.any():
            first = int(np.argmax(outside))
            raise InvalidInput(
                f"input {tensor.name!r}: element {first} does not fit {datatype.name}: "
                f"{bounds.min} to {bounds.max} expected, got {array[first]}"
            )
    return array.astype(target).tobytes()
