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

import tvm
from tvm import tir

from heteroplace.lower.kernels import Kernel, KernelCall, KernelCalls, Variant
from heteroplace.parts.routing.relay.row_kernels import KEPT_ROWS
from heteroplace.tir.lowered_functions import with_functions, with_nodes

_SUFFIX = "_in_place"
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
        symbol = self._in_place(call.kernel, KEPT_ROWS)
        return replace(call, in_place=((residual, 0),), kernel_in_place=symbol)

    def _variant(self, variant: Variant) -> Variant:
        kernel = self._calls.kernels[variant.kernel]
        if not variant.capacity or kernel.op != _COPY or not _is_of_cpu(kernel):
            return variant
        return replace(variant, kernel_in_place=self._in_place(variant.kernel, None))

    def _residual(self, symbol: str) -> int | None:
        """Which of its inputs is its residual; None: it has none, or is no kernel of a CPU."""
        if symbol not in self._residuals:
            self._residuals[symbol] = _residual(self._calls.kernels[symbol])
        return self._residuals[symbol]

    def _in_place(self, symbol: str, key: str | None) -> str:
        """The name of the kernel without what an attribute is around; None: without anything."""
        name = symbol + _SUFFIX
        if name not in self._kernels:
            self._kernels[name] = _without(self._calls.kernels[symbol], key, name)
        return name


def _is_of_cpu(kernel: Kernel) -> bool:
    return kernel.target.kind.name == "llvm" and kernel.functions is not None


def _residual(kernel: Kernel) -> int | None:
    if not _is_of_cpu(kernel):
        return None
    assert kernel.functions is not None
    (function,) = kernel.functions.functions.values()
    variables: list[tir.Var] = []

    def visit(node: tvm.Object) -> None:
        if isinstance(node, tir.AttrStmt) and node.attr_key == KEPT_ROWS:
            tir.stmt_functor.post_order_visit(node.body, note)

    def note(node: tvm.Object) -> None:
        if isinstance(node, tir.BufferLoad):
            variables.append(node.buffer.data)

    tir.stmt_functor.post_order_visit(function.body, visit)
    if not variables:
        return None
    data = [function.buffer_map[parameter].data for parameter in function.params]
    (residual,) = {position for position, each in enumerate(data) if each.same_as(variables[0])}
    return residual


def _without(kernel: Kernel, key: str | None, symbol: str) -> Kernel:
    assert kernel.functions is not None
    nothing = tir.Evaluate(0)

    def replacement(node: tvm.Object) -> tvm.Object | None:
        return nothing if isinstance(node, tir.AttrStmt) and node.attr_key == key else None

    if key is None:
        functions = with_functions(kernel.functions, lambda function: function.with_body(nothing))
    else:
        functions = with_nodes(kernel.functions, replacement, "tir.AttrStmt")
    (function,) = functions.functions.values()
    named = {tvm.ir.GlobalVar(symbol): function.with_attr("global_symbol", symbol)}
    functions = tvm.IRModule(named, attrs=kernel.functions.attrs)
    return replace(kernel, symbol=symbol, functions=functions, function=None)
