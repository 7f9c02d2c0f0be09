"""The weights of a program: one blob in which equal weights are stored once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from heteroplace.lower.program import ALIGNMENT_BYTES, PAGE_BYTES, Constant, aligned

if TYPE_CHECKING:  # it has a layout of its own
    from heteroplace.lower.kernels import Value


class EqualWeights:
    """Weights by their bytes, whatever their shapes and types.

    Only weights of one size with equal samples (`Value.sample`) are compared, so distinct ones are
    hardly read.
    """

    def __init__(self) -> None:
        self._alike: dict[bytes, list[Value]] = defaultdict(list)
        self._first: dict[int, tuple[Value, Value]] = {}
        """By the identity of an array: its weight, which keeps it in memory, and the first one."""

    def first_of(self, value: Value) -> Value:
        """Return the first weight that has the bytes of `value`; that is `value` if it is new."""
        content = value.constant
        if id(content) not in self._first:
            own, alike = value.content, self._alike[value.sample]
            equal = (each for each in alike if np.array_equal(each.content, own))
            first = next(equal, value)
            if first is value:
                alike.append(value)
            self._first[id(content)] = value, first
        return self._first[id(content)][1]


class WeightLayout:
    """Where each distinct weight lies in a blob: in the order of their first use, without gaps.

    Parameters
    ----------
    weights, blob_bytes
        Of a blob that is there already, and is made longer.
    """

    def __init__(self, weights: Mapping[int, Value] | None = None, blob_bytes: int = 0) -> None:
        self.weights: dict[int, Value] = dict(weights or {})
        """Distinct ones, by offset."""
        self.blob_bytes = blob_bytes
        self._blob: np.ndarray | None = None
        self._equal = EqualWeights()
        self._offsets = {
            id(self._equal.first_of(value)): offset for offset, value in self.weights.items()
        }

    def offset(self, value: Value) -> int:
        """Return the offset of the content of `value`, which is added if it is new."""
        assert value.constant is not None
        first = id(self._equal.first_of(value))
        if first not in self._offsets:
            self._offsets[first] = self.blob_bytes
            self.weights[self.blob_bytes] = value
            self.blob_bytes += aligned(value.constant.nbytes)
        return self._offsets[first]

    @property
    def blob(self) -> np.ndarray:
        """All weights so far, as of `blob_of`. Kept until more are added."""
        if self._blob is None or len(self._blob) < self.blob_bytes:
            self._blob = blob_of(self.weights, self.blob_bytes)
        return self._blob


def blob_of(weights: Mapping[int, Value], blob_bytes: int) -> np.ndarray:
    """Return weights, by their offsets, as one array of bytes at a multiple of a page."""
    size = max(blob_bytes, ALIGNMENT_BYTES)
    raw = np.zeros(size + PAGE_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % PAGE_BYTES
    blob = raw[start : start + size]
    for offset, value in weights.items():
        content = value.content
        blob[offset : offset + len(content)] = content
    return blob


class WeightTable:
    """The constants of a program: a weight in a memory is one of them."""

    def __init__(self) -> None:
        self.constants: list[Constant] = []
        self.layout = WeightLayout()
        self._ids: dict[tuple[int, int], int] = {}

    def add(self, value: Value, memory: int) -> int:
        """Return the id of the constant with the content of `value` in a memory; made once."""
        assert value.constant is not None
        offset = self.layout.offset(value)
        if (memory, offset) not in self._ids:
            self._ids[memory, offset] = len(self.constants)
            self.constants.append(Constant(memory, offset, value.constant.nbytes))
        return self._ids[memory, offset]

    def held_bytes(self, memory: int) -> int:
        """Return what the constants take in a memory."""
        return sum(aligned(c.bytes) for c in self.constants if c.space == memory)
