"""The datatypes of the Open Inference Protocol.

Source: the tensor data types table of the Open Inference Protocol v2.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mcprun.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Datatype:
    """One datatype."""

    name: str
    """Its name in the protocol, for example FP32."""
    itemsize: int
    """Bytes of one element; 0 for BYTES, whose elements vary."""
    numpy: str
    """Its numpy dtype, little-endian. BF16 has none of its own and travels as uint16; BYTES is an object array."""
    onnx: str
    """Its element type in ONNX Runtime's vocabulary, for example tensor(float)."""
    contents: str
    """The field of inference.InferTensorContents that carries it; empty where only raw bytes can."""


DATATYPES: dict[str, Datatype] = {
    datatype.name: datatype
    for datatype in (
        Datatype("BOOL", 1, "|b1", "tensor(bool)", "bool_contents"),
        Datatype("UINT8", 1, "|u1", "tensor(uint8)", "uint_contents"),
        Datatype("UINT16", 2, "<u2", "tensor(uint16)", "uint_contents"),
        Datatype("UINT32", 4, "<u4", "tensor(uint32)", "uint_contents"),
        Datatype("UINT64", 8, "<u8", "tensor(uint64)", "uint64_contents"),
        Datatype("INT8", 1, "|i1", "tensor(int8)", "int_contents"),
        Datatype("INT16", 2, "<i2", "tensor(int16)", "int_contents"),
        Datatype("INT32", 4, "<i4", "tensor(int32)", "int_contents"),
        Datatype("INT64", 8, "<i8", "tensor(int64)", "int64_contents"),
        Datatype("FP16", 2, "<f2", "tensor(float16)", ""),
        Datatype("FP32", 4, "<f4", "tensor(float)", "fp32_contents"),
        Datatype("FP64", 8, "<f8", "tensor(double)", "fp64_contents"),
        Datatype("BF16", 2, "<u2", "tensor(bfloat16)", ""),
        Datatype("BYTES", 0, "|O", "tensor(string)", "bytes_contents"),
    )
}

BY_ONNX: dict[str, Datatype] = {datatype.onnx: datatype for datatype in DATATYPES.values()}

_LENGTH = struct.Struct("<I")


def element_count(shape: Sequence[int]) -> int:
    """How many elements a tensor of this shape has; 1 for a scalar."""
    count = 1
    for extent in shape:
        count *= extent
    return count


def encode_bytes(elements: Iterable[bytes]) -> bytes:
    """The raw form of a BYTES tensor: each element behind its length as a 32-bit little-endian number."""
    parts: list[bytes] = []
    for element in elements:
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def decode_bytes(raw: bytes, *, count: int, tensor: str) -> list[bytes]:
    """The `count` elements of a raw BYTES tensor.

    Raises InvalidInput, naming `tensor`, when the lengths do not add up.
    """
    elements: list[bytes] = []
    position, end = 0, len(raw)
    while position < end:
        if position + 4 > end:
            raise InvalidInput(
                f"tensor {tensor!r}: BYTES element {len(elements)} has a cut-off length: 4 bytes expected, got {end - position}"
            )
        (size,) = _LENGTH.unpack_from(raw, position)
        position += 4
        if position + size > end:
            raise InvalidInput(f"tensor {tensor!r}: BYTES element {len(elements)} is cut off: {size} bytes expected, got {end - position}")
        elements.append(raw[position : position + size])
        position += size
        if len(elements) > count:
            break
    if len(elements) != count:
        more = "more" if len(elements) > count else str(len(elements))
        raise InvalidInput(f"tensor {tensor!r}: {count} BYTES elements expected by its shape, got {more}")
    return elements
