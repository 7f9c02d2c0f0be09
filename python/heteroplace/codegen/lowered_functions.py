"""Rewrites of the lowered functions of a kernel, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tir


def with_functions(
    functions: tvm.IRModule, rewritten: Callable[[tir.PrimFunc], tir.PrimFunc]
) -> tvm.IRModule:
    """Return a module whose functions of TIR are rewritten; the same one if none changes.

    Parameters
    ----------
    functions
        Not changed.
    rewritten
        Returns the function that it gets if there is nothing to rewrite.
    """
    found = {
        name: rewritten(each) if isinstance(each, tir.PrimFunc) else each
        for name, each in functions.functions.items()
    }
    if all(found[name].same_as(each) for name, each in functions.functions.items()):
        return functions
    return tvm.IRModule(found, attrs=functions.attrs)


def with_nodes(
    functions: tvm.IRModule, replacement: Callable[[tvm.Object], tvm.Object | None], *kinds: str
) -> tvm.IRModule:
    """Return a module in which nodes of these kinds, e.g. "tir.Max", are replaced, inner first.

    `replacement` returns None where a node stays.
    """

    def rewritten(function: tir.PrimFunc) -> tir.PrimFunc:
        body = tir.stmt_functor.ir_transform(function.body, None, replacement, list(kinds))
        return function if body.same_as(function.body) else function.with_body(body)

    return with_functions(functions, rewritten)
