"""Rewrites of the lowered functions of a kernel, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tvm
from tvm import tir


def is_kernel_of(functions: tvm.IRModule, ops: Sequence[str]) -> bool:
    """Tell whether the lowered functions of a kernel are named after one of the ops."""
    names = [variable.name_hint for variable in functions.get_global_vars()]
    return any(op in name for op in ops for name in names)


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
    new_functions = {
        name: rewritten(each) if isinstance(each, tir.PrimFunc) else each
        for name, each in functions.functions.items()
    }
    if all(new_functions[name].same_as(each) for name, each in functions.functions.items()):
        return functions
    return tvm.IRModule(new_functions, attrs=functions.attrs)


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


def without_names(expression: tir.PrimExpr, names: Mapping[tir.Var, tir.PrimExpr]) -> tir.PrimExpr:
    """Return an expression with values in place of the names that TVM gave to common parts.

    Parameters
    ----------
    names
        The value of each variable of a `LetStmt` around the expression.
    """
    while any(each in names for each in tir.analysis.undefined_vars(expression)):
        expression = tir.stmt_functor.substitute(expression, names)
    return expression
