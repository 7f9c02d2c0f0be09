"""Combines of routed networks, also with a kernel for where they lie in the bytes of a residual.

    y = combine(joined, seats, offsets, residual)

before ==> after, of a cell that no branch has taken, where y is in the bytes of `residual`

    y[cell] = residual[cell]    ==>    (it is there)

Which calls are made so is decided where it is known who else reads the residual (`calls_in_place`).
"""

from __future__ import annotations

from dataclasses import replace

import tvm
from tvm import tir

from heteroplace.codegen.kernels import Kernel, KernelCall, KernelCalls
from heteroplace.codegen.lowered_functions import with_nodes
from heteroplace.relay.routing.kernels import KEPT_ROWS

_SUFFIX = "_in_place"


def with_kept_rows(calls: KernelCalls) -> KernelCalls:
    """Return the calls; those that combine rows with a residual, in no branch, have two kernels."""
    kernels = dict(calls.kernels)
    known: dict[str, int | None] = {}

    def found(call: KernelCall) -> KernelCall:
        if not call.kernel or call.variants:
            return call
        symbol = call.kernel + _SUFFIX
        if call.kernel not in known:
            kernel = kernels[call.kernel]
            residual = known[call.kernel] = _residual(kernel)
            if residual is not None:
                kernels[symbol] = _in_place(kernel, symbol)
        residual = known[call.kernel]
        if residual is None:
            return call
        return replace(call, in_place=((residual, 0),), kernel_in_place=symbol)

    return replace(calls, calls=tuple(map(found, calls.calls)), kernels=kernels)


def _residual(kernel: Kernel) -> int | None:
    """Return which of its inputs is its residual; None: it has none, or is no kernel of a CPU."""
    if kernel.target.kind.name != "llvm" or kernel.functions is None:
        return None
    (function,) = kernel.functions.functions.values()
    found: list[tir.Var] = []

    def visit(node: tvm.Object) -> None:
        if isinstance(node, tir.AttrStmt) and node.attr_key == KEPT_ROWS:
            tir.stmt_functor.post_order_visit(node.body, note)

    def note(node: tvm.Object) -> None:
        if isinstance(node, tir.BufferLoad):
            found.append(node.buffer.data)

    tir.stmt_functor.post_order_visit(function.body, visit)
    if not found:
        return None
    data = [function.buffer_map[parameter].data for parameter in function.params]
    (residual,) = {position for position, each in enumerate(data) if each.same_as(found[0])}
    return residual


def _in_place(kernel: Kernel, symbol: str) -> Kernel:
    assert kernel.functions is not None

    def nothing(node: tvm.Object) -> tvm.Object | None:
        is_kept = isinstance(node, tir.AttrStmt) and node.attr_key == KEPT_ROWS
        return tir.Evaluate(0) if is_kept else None

    (function,) = with_nodes(kernel.functions, nothing, "tir.AttrStmt").functions.values()
    named = {tvm.ir.GlobalVar(symbol): function.with_attr("global_symbol", symbol)}
    functions = tvm.IRModule(named, attrs=kernel.functions.attrs)
    return replace(kernel, symbol=symbol, functions=functions, function=None)
