"""Lowered kernels -> the same in which rows are padded at their ends alone.

TVM tests for every column of a padded map whether it is inside. The columns inside are neighbours,
so three loops need no test:

    for x in 114:                                        for x in 0 .. 1:
        to[x] = data[x - 1] if 1 <= x < 113 else 0  ==>      to[x] = 0
                                                         for x in 1 .. 113:
                                                             to[x] = data[x - 1]
                                                         for x in 113 .. 114:
                                                             to[x] = 0
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import tvm
from tvm import tir

from heteroplace.tir.lowered_functions import with_nodes

_CHOICE = "tir.if_then_else"


def padded_rows(functions: tvm.IRModule) -> tvm.IRModule:
    """Return the kernels with such loops split.

    Parameters
    ----------
    functions
        Lowered functions of one kernel for a CPU; they are not changed.
    """
    return with_nodes(functions, _split, "tir.For")


def _split(loop: tir.For) -> tir.Stmt | None:
    """The parts of a loop over the columns of a padded row; None: it is no such loop."""
    store = _without_lets(loop.body)
    is_constant = isinstance(loop.min, tir.IntImm) and isinstance(loop.extent, tir.IntImm)
    if loop.kind != tir.ForKind.SERIAL or not is_constant or not _is_choice(store):
        return None
    condition, inside, outside = store.value.args
    first, end = int(loop.min), int(loop.min) + int(loop.extent)
    start, stop, others = first, end, []
    for term in _terms(condition):
        limits = _limits(term, loop.loop_var)
        if limits is None:
            others.append(term)
        else:
            start, stop = max(start, limits[0]), min(stop, limits[1])
    is_asked_of_columns = any(_reads(term, loop.loop_var) for term in others)
    if (start, stop) == (first, end) or start >= stop or is_asked_of_columns:
        return None
    if others:
        inside = tir.if_then_else(tir.all(*others), inside, outside)
    parts = [(first, start, outside), (start, stop, inside), (stop, end, outside)]
    return tir.SeqStmt([_part(loop, store, *part) for part in parts if part[0] < part[1]])


def _part(
    loop: tir.For, store: tir.BufferStore, first: int, end: int, value: tir.PrimExpr
) -> tir.Stmt:
    """A loop over some of the columns, with a variable of its own."""
    column = tir.Var(loop.loop_var.name, loop.loop_var.dtype)
    body = tir.BufferStore(store.buffer, value, store.indices)
    body = tir.stmt_functor.substitute(body, {loop.loop_var: column + first})
    return tir.For(column, 0, end - first, tir.ForKind.SERIAL, body)


def _without_lets(body: tir.Stmt) -> tir.Stmt:
    while isinstance(body, tir.LetStmt):
        body = tir.stmt_functor.substitute(body.body, {body.var: body.value})
    return body


def _is_choice(store: tir.Stmt) -> bool:
    value = store.value if isinstance(store, tir.BufferStore) else None
    return isinstance(value, tir.Call) and getattr(value.op, "name", "") == _CHOICE


def _terms(condition: tir.PrimExpr) -> Iterator[tir.PrimExpr]:
    if isinstance(condition, tir.And):
        yield from _terms(condition.a)
        yield from _terms(condition.b)
    else:
        yield condition


def _limits(term: tir.PrimExpr, column: tir.Var) -> tuple[int, int] | None:
    """The first column of which a term holds, and the one behind the last; None: not constant."""
    limits = tvm.arith.detect_clip_bound(term, [column])
    if not limits or any(each is not None and not isinstance(each, tir.IntImm) for each in limits):
        return None
    least, most = limits
    return (
        -sys.maxsize if least is None else int(least),
        sys.maxsize if most is None else int(most) + 1,
    )


def _reads(expression: tir.PrimExpr, variable: tir.Var) -> bool:
    return any(each.same_as(variable) for each in tir.analysis.undefined_vars(expression))
