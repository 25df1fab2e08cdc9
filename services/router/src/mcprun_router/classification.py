"""The k best classes of an output, as Triton's classification extension gives them."""

import numpy as np

from mcprun.datatypes import DATATYPES, element_count, encode_bytes
from mcprun.errors import InvalidInput


def top_classes(
    raw: bytes, *, name: str, datatype: str, shape: tuple[int, ...], count: int, labels: list[str], batched: bool
) -> tuple[bytes, list[int]]:
    """The `count` largest elements of each row as BYTES elements "value:index" or "value:index:label", the largest first.

    Returns the raw BYTES tensor and its shape. Raises InvalidInput when the output is not a vector of numbers a row.
    """
    if datatype in {"BYTES", "BF16"}:
        raise InvalidInput(f"output {name!r}: classification needs numbers, got {datatype}")
    scores = np.frombuffer(raw, DATATYPES[datatype].numpy).reshape(shape)
    rows = scores.reshape(shape[0], element_count(shape[1:])) if batched and len(shape) > 1 else scores.reshape(1, -1)
    count = min(count, rows.shape[1])
    best = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    elements: list[bytes] = []
    for row, indices in zip(rows, best, strict=True):
        for index in indices.tolist():
            label = f":{labels[index]}" if index < len(labels) else ""
            elements.append(f"{float(row[index]):f}:{index}{label}".encode())
    return encode_bytes(elements), ([shape[0], count] if batched and len(shape) > 1 else [count])
