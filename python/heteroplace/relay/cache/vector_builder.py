"""Numbers and places in memory -> statements of TIR on vectors of floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tir

_FLOAT = "float32"


class VectorBuilder:
    """Adds statements to a kernel.

    Parameters
    ----------
    lanes
        Of vectors of sums.
    width
        Of vectors in memory, where nothing else is said.
    """

    def __init__(self, lanes: int, width: int) -> None:
        self.builder = tir.ir_builder.create()
        self.lanes, self.width = lanes, width

    def _buffer(
        self, name: str, *shape: int, scope: str = "global", dtype: str = _FLOAT
    ) -> tir.Buffer:
        buffer = tir.decl_buffer(shape, dtype, name, scope=scope)
        self.builder.emit(
            lambda body: tir.Allocate(buffer.data, dtype, shape, tir.const(1, "bool"), body)
        )
        return buffer

    def _load(self, buffer: tir.Buffer, *at: Any, lanes: int | None = None) -> Any:
        count = lanes or self.width
        return buffer.vload(list(at), _FLOAT if count == 1 else f"{_FLOAT}x{count}")

    def _store(self, buffer: tir.Buffer, value: Any, *at: Any) -> None:
        self.builder.emit(buffer.vstore(list(at), value))

    @staticmethod
    def _all(value: Any, lanes: int) -> Any:
        return value if lanes == 1 else tir.Broadcast(value, lanes)

    def _held(self, value: Any, lanes: int = 1) -> Any:
        """Return a value that is computed once.

        It has no name: TVM's simplifier puts what a name stands for wherever it is read.
        """
        buffer = self._buffer("held", lanes, scope="local")
        self._store(buffer, value, 0)
        return self._load(buffer, 0, lanes=lanes)

    def _across(self, value: Any, together: Callable[[Any, Any, int], Any]) -> Any:
        """Return what all lanes of a vector make together."""
        lanes = self.lanes
        while lanes > 1:
            lanes //= 2
            halves = [tir.Shuffle([value], list(range(at, at + lanes))) for at in (0, lanes)]
            value = together(halves[0], halves[1], lanes)
        return value

    def _larger(self, one: Any, other: Any, lanes: int = 1) -> Any:
        one, other = self._held(one, lanes), self._held(other, lanes)
        return self._held(tir.Select(one > other, one, other), lanes)

    def _sum(self, one: Any, other: Any, lanes: int = 1) -> Any:
        return self._held(one + other, lanes)
