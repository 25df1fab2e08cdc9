"""Steps over a whole batch of numbers."""

from collections.abc import Callable

import numpy as np

from mcprun.datatypes import DATATYPES
from mcprun.errors import InvalidInput
from mcprun.model.steps import Cast, Layout, Normalize
from mcprun_worker.backends.base import Array

CHW, HWC = "CHW", "HWC"


def batch_step(step: Cast | Normalize | Layout, *, order: str) -> Callable[[Array], Array]:
    """The step as a function of a batch [N, ...] whose channels lie as `order` says."""
    if isinstance(step, Cast):
        target = np.dtype(DATATYPES[step.datatype].numpy)
        return lambda batch: batch.astype(target, copy=False)
    if isinstance(step, Normalize):
        return _normalize(step, order)
    if step.order == order:
        return lambda batch: batch
    axes = (0, 3, 1, 2) if step.order == CHW else (0, 2, 3, 1)

    def move(batch: Array) -> Array:
        if batch.ndim != 4:
            raise InvalidInput(f"layout needs images of 3 dimensions, got {batch.ndim - 1}")
        return np.ascontiguousarray(batch.transpose(axes))

    return move


def _normalize(step: Normalize, order: str) -> Callable[[Array], Array]:
    # (x × scale - mean) / std as one product and one sum.
    std = np.asarray(step.std, np.float64)
    factor = (step.scale / std).astype(np.float32)
    offset = (-np.asarray(step.mean, np.float64) / std).astype(np.float32)

    def normalize(batch: Array) -> Array:
        shape = (-1, 1, 1) if order == CHW and batch.ndim == 4 else (-1,)
        result = batch.astype(np.float32) * factor.reshape(shape)
        result += offset.reshape(shape)
        return result

    return normalize
