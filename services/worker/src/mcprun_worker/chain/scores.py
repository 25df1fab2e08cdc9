"""Steps over a model's output."""

import numpy as np

from mcprun_worker.backends.base import Array


def mean_pool(tokens: Array, mask: Array) -> Array:
    """[N, T, H] and its attention mask [N, T] to [N, H], FP32."""
    weights = mask.astype(np.float32)[:, :, None]
    total = (tokens * weights).sum(axis=1)
    return np.asarray(total / np.maximum(weights.sum(axis=1), 1e-9), np.float32)


def l2_normalize(rows: Array) -> Array:
    """Rows of length 1 along the last axis."""
    # The squares of FP16 numbers are soon too large for FP16.
    wide = rows.astype(np.promote_types(rows.dtype, np.float32), copy=False)
    length = np.linalg.norm(wide, axis=-1, keepdims=True)
    return np.asarray(wide / np.where(length == 0, 1, length), rows.dtype)


def softmax(scores: Array) -> Array:
    """Probabilities along the last axis, FP32."""
    wide = scores.astype(np.float32)
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True, initial=-np.inf))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), np.float32)


def top_k(scores: Array, k: int, labels: tuple[str, ...]) -> tuple[Array, Array]:
    """The names [N, k] and the scores [N, k] of the k best classes of each row, the best first."""
    rows = scores.reshape(scores.shape[0], -1)
    k = min(k, rows.shape[1])
    best = np.argsort(-rows, axis=1, kind="stable")[:, :k]
    names = np.empty(best.shape, object)
    for row, column in np.ndindex(*best.shape):
        index = int(best[row, column])
        names[row, column] = labels[index] if index < len(labels) else str(index)
    return names, np.take_along_axis(rows, best, axis=1).astype(np.float32)
