"""A kernel that copies rows to their own place -> another, for a result in the bytes of those.

    y = x, but for some rows                     y is in the bytes of x

    y[all] = x[all]; y[some] = rows    ==>    y[some] = rows

What copies is marked in the lowered code by `KEPT_ROWS`. `write_rows` of a cache is such a kernel,
and so is the combine of a routed network with a residual.
"""

from __future__ import annotations

from dataclasses import replace

import tvm
from tvm import tir

from heteroplace.lower.kernels import Kernel, KernelCall
from heteroplace.relay.cache.write_kernel import KEPT_ROWS
from heteroplace.tir.lowered_functions import with_functions, with_nodes

IN_PLACE_SUFFIX = "_in_place"
"""Of the symbol of such a kernel."""


def is_of_cpu(kernel: Kernel) -> bool:
    """Say whether a kernel is lowered code for a CPU."""
    return kernel.target.kind.name == "llvm" and kernel.functions is not None


def kept_operand(kernel: Kernel) -> int | None:
    """Return which of its inputs a kernel copies to its own place; None: none, or it is no kernel
    of a CPU."""
    if not is_of_cpu(kernel):
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
    (operand,) = {position for position, each in enumerate(data) if each.same_as(variables[0])}
    return operand


def in_place_kernel(kernel: Kernel, *, does_nothing: bool = False) -> Kernel:
    """Return the kernel without what copies rows, under its own symbol.

    `does_nothing`: without anything, for a kernel that is a copy as a whole.
    """
    assert kernel.functions is not None
    nothing = tir.Evaluate(0)

    def replacement(node: tvm.Object) -> tvm.Object | None:
        return nothing if isinstance(node, tir.AttrStmt) and node.attr_key == KEPT_ROWS else None

    if does_nothing:
        functions = with_functions(kernel.functions, lambda function: function.with_body(nothing))
    else:
        functions = with_nodes(kernel.functions, replacement, "tir.AttrStmt")
    (function,) = functions.functions.values()
    symbol = kernel.symbol + IN_PLACE_SUFFIX
    named = {tvm.ir.GlobalVar(symbol): function.with_attr("global_symbol", symbol)}
    functions = tvm.IRModule(named, attrs=kernel.functions.attrs)
    return replace(kernel, symbol=symbol, functions=functions, function=None, code=None)


def with_rows_in_place(call: KernelCall, kernels: dict[str, Kernel]) -> KernelCall:
    """Return a call that writes rows of a cache with its second kernel, which is added to the
    kernels; another call as it is."""
    kernel = kernels[call.kernel]
    operand = kept_operand(kernel)
    if operand is None:
        return call
    symbol = kernel.symbol + IN_PLACE_SUFFIX
    if symbol not in kernels:
        kernels[symbol] = in_place_kernel(kernel)
    return replace(call, in_place=((operand, 0),), kernel_in_place=symbol)
