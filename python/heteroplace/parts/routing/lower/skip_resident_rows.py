"""Kernels that copy rows of routed networks -> others beside them, for rows that are there already.

    y = combine(joined, seats, offsets, residual)

before ==> after, of a cell that no branch has taken, where y is in the bytes of `residual`

    y[cell] = residual[cell]    ==>    (it is there)

The same for a branch that copies its rows, y = x, where y is in the bytes of x: nothing is done.
Which calls are made so is decided where it is known who else reads what is written over, and where
(`calls_in_place`, `handed_on`).
"""

from __future__ import annotations

from dataclasses import replace

from heteroplace.lower.kernels import KernelCall, KernelCalls, Variant
from heteroplace.lower.rows_in_place import (
    IN_PLACE_SUFFIX,
    in_place_kernel,
    is_of_cpu,
    kept_operand,
)

_COPY = "copy"
"""`Kernel.op` of a copy."""


def with_kept_rows(calls: KernelCalls) -> KernelCalls:
    """Return the calls; combines with a residual, in no branch, and copies in branches have two
    kernels, those of a CPU."""
    return _KeptRows(calls).found()


class _KeptRows:
    def __init__(self, calls: KernelCalls) -> None:
        self._calls = calls
        self._kernels = dict(calls.kernels)
        self._residuals: dict[str, int | None] = {}

    def found(self) -> KernelCalls:
        calls = tuple(map(self._call, self._calls.calls))
        return replace(self._calls, calls=calls, kernels=self._kernels)

    def _call(self, call: KernelCall) -> KernelCall:
        if call.variants:
            return replace(call, variants=tuple(map(self._variant, call.variants)))
        residual = self._residual(call.kernel)
        if residual is None:
            return call
        symbol = self._in_place(call.kernel)
        return replace(call, in_place=((residual, 0),), kernel_in_place=symbol)

    def _variant(self, variant: Variant) -> Variant:
        kernel = self._calls.kernels[variant.kernel]
        if not variant.capacity or kernel.op != _COPY or not is_of_cpu(kernel):
            return variant
        return replace(variant, kernel_in_place=self._in_place(variant.kernel, does_nothing=True))

    def _residual(self, symbol: str) -> int | None:
        """Which of its inputs is its residual; None: it has none, or is no kernel of a CPU."""
        if symbol not in self._residuals:
            self._residuals[symbol] = kept_operand(self._calls.kernels[symbol])
        return self._residuals[symbol]

    def _in_place(self, symbol: str, *, does_nothing: bool = False) -> str:
        """The name of the kernel that leaves rows where they are."""
        name = symbol + IN_PLACE_SUFFIX
        if name not in self._kernels:
            kernel = in_place_kernel(self._calls.kernels[symbol], does_nothing=does_nothing)
            self._kernels[name] = kernel
        return name
