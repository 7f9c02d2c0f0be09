"""The weights of a program: one blob in which equal weights are stored once."""

from __future__ import annotations

from collections.abc import Mapping

from heteroplace.lower.kernels import Value
from heteroplace.lower.program import Constant, aligned


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
        self._offsets = {value.digest: offset for offset, value in self.weights.items()}

    def offset(self, value: Value) -> int:
        """Return the offset of the content of `value`, which is added if it is new."""
        assert value.constant is not None
        if value.digest not in self._offsets:
            self._offsets[value.digest] = self.blob_bytes
            self.weights[self.blob_bytes] = value
            self.blob_bytes += aligned(value.constant.nbytes)
        return self._offsets[value.digest]


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
