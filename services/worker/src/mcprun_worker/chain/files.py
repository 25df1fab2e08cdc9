"""The first and last bytes of a file."""

import numpy as np

from mcprun.model.steps import ByteWindow
from mcprun_worker.backends.base import Array

# What counts as white space: Python's own idea of it for bytes, which the models of this kind were trained with.


def byte_window(step: ByteWindow, content: bytes) -> Array:
    """INT32 [head + tail], as the step's docstring says."""
    start, end = content[: step.block], content[-step.block :]
    if step.strip:
        start, end = start.lstrip(), end.rstrip()
    window = np.full(step.head + step.tail, step.pad, np.int32)
    head = start[: step.head]
    window[: len(head)] = np.frombuffer(head, np.uint8)
    tail = end[-step.tail :] if step.tail else b""
    if tail:
        window[len(window) - len(tail) :] = np.frombuffer(tail, np.uint8)
    return window
