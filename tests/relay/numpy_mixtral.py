"""The weights of a small Mixtral in ONNX -> its logits, in float64, token by token and expert by
expert; and a single layer of experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from zoo.mixtral import MixtralSizes

Array = npt.NDArray[Any]


def swish(data: Array, alpha: float = 1.0) -> Array:
    """x sigmoid(alpha x)."""
    result: Array = data / (1 + np.exp(-alpha * data))
    return result


def layer_of_experts(
    rows: Array, scores: Array, k: int, expert: Callable[[int, Array], Array], *, normalised: bool
) -> Array:
    """What the best k experts of each row make of it, weighed by the softmax of their scores."""
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    results = []
    for row, share in zip(rows, shares, strict=True):
        best = np.argsort(-share)[:k]
        weights = share[best] / (share[best].sum() if normalised else 1)
        results.append(sum(w * expert(i, row) for i, w in zip(best, weights, strict=True)))
    return np.stack(results)


def mixtral_logits(model: onnx.ModelProto, sizes: MixtralSizes, tokens: Array) -> Array:
    """The logits of every token of one sequence, [length, vocabulary], of separate matrices."""
    weights = {
        each.name: numpy_helper.to_array(each).astype("float64") for each in model.graph.initializer
    }
    value = weights["embedding"][tokens]
    for layer in range(sizes.attention.layers):
        parts = {
            name.removeprefix(f"layers.{layer}."): data
            for name, data in weights.items()
            if name.startswith(f"layers.{layer}.")
        }
        normed = _norm(value, parts["attention_norm.scale"], sizes)
        value = value + _attention(normed, parts, sizes)
        normed = _norm(value, parts["experts_norm.scale"], sizes)

        def expert(index: int, row: Array, parts: Mapping[str, Array] = parts) -> Array:
            inner = swish(parts["gate"][index] @ row) * (parts["linear"][index] @ row)
            result: Array = parts["out"][index] @ inner
            return result

        scores = normed @ parts["router"]
        value = value + layer_of_experts(normed, scores, sizes.chosen, expert, normalised=True)
    result: Array = _norm(value, weights["norm.scale"], sizes) @ weights["head"]
    return result


def _norm(value: Array, scale: Array, sizes: MixtralSizes) -> Array:
    squares = (value**2).mean(-1, keepdims=True)
    result: Array = value / np.sqrt(squares + sizes.attention.epsilon) * scale
    return result


def _attention(value: Array, parts: Mapping[str, Array], sizes: MixtralSizes) -> Array:
    of = sizes.attention
    length = len(value)
    queries, keys, values = (
        (value @ parts[name]).reshape(length, -1, of.size).swapaxes(0, 1)
        for name in ("queries", "keys", "values")
    )
    queries, keys = (_rotated(data, of.base) for data in (queries, keys))
    keys, values = (np.repeat(data, of.heads // of.shared, axis=0) for data in (keys, values))
    scores = queries @ keys.swapaxes(1, 2) / of.size**0.5
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = shares / shares.sum(-1, keepdims=True) @ values
    result: Array = mixed.swapaxes(0, 1).reshape(length, -1) @ parts["attended"]
    return result


def _rotated(data: Array, base: float) -> Array:
    """Rotate the halves of heads, [heads, length, size]."""
    half = data.shape[2] // 2
    angles = np.outer(np.arange(data.shape[1]), base ** -(np.arange(half) / half))
    first, second = data[..., :half], data[..., half:]
    cosines, sines = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], -1)
