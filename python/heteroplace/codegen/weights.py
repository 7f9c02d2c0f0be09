"""The weights of a program: one blob in which equal weights are stored once."""

from __future__ import annotations

import numpy as np

from heteroplace.codegen.kernels import Value
from heteroplace.codegen.program import Constant, aligned


class WeightTable:
    """Weights in the order of their first use, and where each lies in the blob."""

    def __init__(self) -> None:
        self.constants: list[Constant] = []
        self.weights: list[np.ndarray] = []
        """Distinct ones, laid out one after the other."""
        self.blob_bytes = 0
        self._offsets: dict[bytes, int] = {}
        self._ids: dict[tuple[int, bytes], int] = {}

    def add(self, value: Value, memory: int) -> int:
        """Return the id of the constant with the content of `value` in a memory; made once."""
        assert value.constant is not None
        if value.digest not in self._offsets:
            self._offsets[value.digest] = self.blob_bytes
            self.weights.append(np.ascontiguousarray(value.constant))
            self.blob_bytes += aligned(value.constant.nbytes)
        key = (memory, value.digest)
        if key not in self._ids:
            self._ids[key] = len(self.constants)
            offset = self._offsets[value.digest]
            self.constants.append(Constant(memory, offset, value.constant.nbytes))
        return self._ids[key]

    def held_bytes(self, memory: int) -> int:
        """Return what the constants take in a memory."""
        return sum(aligned(c.bytes) for c in self.constants if c.space == memory)
