"""From what people type to tensors, and back."""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from mcprun.cli.failure import CommandFailed, ExitCode


def tensor(spec: dict[str, Any], value: Any) -> dict[str, Any]:
    """A JSON tensor for an input of the model, out of nested lists or one value.

    A value that lacks the batch dimension is taken as one row. Raises CommandFailed when the lists are ragged.
    """
    name, wanted = str(spec["name"]), [int(extent) for extent in spec.get("shape", [])]
    shape = shape_of(value, name)
    while len(shape) < len(wanted):
        value, shape = [value], [1, *shape]
    return {"name": name, "datatype": spec["datatype"], "shape": shape, "data": list(flat(value))}


def binary_tensor(spec: dict[str, Any], elements: Sequence[bytes]) -> tuple[dict[str, Any], bytes]:
    """A BYTES tensor whose elements follow the JSON, as (its description, its bytes)."""
    raw = b"".join(struct.pack("<I", len(element)) + element for element in elements)
    shape = [1] * max(0, len(spec.get("shape", [])) - 1) + [len(elements)]
    description = {"name": spec["name"], "datatype": "BYTES", "shape": shape, "parameters": {"binary_data_size": len(raw)}}
    return description, raw


def shape_of(value: Any, name: str) -> list[int]:
    """The shape of nested lists. Raises CommandFailed when they are ragged."""
    if not isinstance(value, list):
        return []
    shapes = [shape_of(item, name) for item in value]
    if any(shape != shapes[0] for shape in shapes):
        raise CommandFailed(ExitCode.USAGE, f"input {name!r}: lists of one length are expected at each depth, got ragged ones")
    return [len(value), *(shapes[0] if shapes else [])]


def flat(value: Any) -> Iterator[Any]:
    """The elements of nested lists, in order."""
    if isinstance(value, list):
        for item in value:
            yield from flat(item)
    else:
        yield value


def rows(output: dict[str, Any]) -> list[list[Any]]:
    """The elements of an output by the first dimension; one row when there is none."""
    data, shape = list(flat(output.get("data", []))), output.get("shape", [])
    count = int(shape[0]) if len(shape) > 1 else 1
    width = len(data) // count if count else 0
    return [data[index * width : (index + 1) * width] for index in range(count)]
