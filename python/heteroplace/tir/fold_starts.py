"""Lowered kernels -> the same whose maxima and minima over several elements begin from infinity.

TVM's begin from the lowest or highest finite number, and their places at -1. The maximum of nothing
but -inf (a row or a window that a mask covers wholly) is then a finite number, and the place of the
largest of them, or of nothing but zeros in uint8, is outside of the axis.

    most[i] = -3.4e38                              ==>  most[i] = -inf
    place[i] = -1                                  ==>  place[i] = 0    beside such a maximum
    max(most[i], if_then_else(at, x[j], -3.4e38))  ==>  max(most[i], if_then_else(at, x[j], -inf))

The last is what a pool puts around its map. Nothing but constants changes, so it costs no time. Of
two equal elements the first counts, or the last if that was asked for, and place 0 is before all
others: beside -inf it is right for both. CUDA has infinities in a header, which need not be there;
for GPUs their bits are written.

A place that is known to be within its axis is read without a look at it (`relay/index_guards.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import relay, tir

from heteroplace.model.op_traits.op_table import ops_where
from heteroplace.relay.expressions import op_name, post_order
from heteroplace.tir.lowered_functions import with_nodes

_MAXIMA = ops_where(lambda op: op.fold == "max")
_MINIMA = ops_where(lambda op: op.fold == "min")
_POOLS = ops_where(lambda op: op.fold == "max" and op.parts == "layout")
_PLACES = ops_where(lambda op: op.kind == "index")
_BITS = {"float16": "int16", "float32": "uint32", "float64": "int64"}
"""Floats -> what their bits are written as. A plain int would be written without a name, and so
have no address; of uint64 TVM writes no number that large."""
_BEFORE_ALL = -1
"""Where TVM's folds for a place begin."""

_Start = Callable[[tir.PrimExpr], "tir.PrimExpr | None"]
"""From what a fold begins to what it has to begin from; None: it is no such number."""


def start_folds(functions: tvm.IRModule, function: relay.Function, *, is_cpu: bool) -> tvm.IRModule:
    """Return the kernels with other numbers to begin from.

    Parameters
    ----------
    functions
        Lowered functions of one kernel; they are not changed.
    function
        What they were lowered from, whose ops say which numbers are meant.
    is_cpu
        They are compiled by LLVM.
    """
    ops = {op_name(node) for node in post_order(function.body)}
    if not ops & (_MAXIMA | _MINIMA):
        return functions
    start = _starts(ops, _number if is_cpu else _bits)
    is_pool = bool(ops & _POOLS)

    def replacement(node: tvm.Object) -> tvm.Object | None:
        if isinstance(node, tir.BufferStore):
            value = start(node.value)
            return None if value is None else tir.BufferStore(node.buffer, value, node.indices)
        if isinstance(node, tir.AttrStmt):
            return _with_identity(node, start)
        return _with_padding(node, start) if is_pool else None

    return with_nodes(functions, replacement, "tir.BufferStore", "tir.AttrStmt", "tir.Call")


def _starts(ops: set[str | None], written: Callable[[str, float], tir.PrimExpr]) -> _Start:
    """Return the numbers of a kernel of these ops, whose infinities are `written` so."""
    infinities: dict[tuple[str, float], float] = {}
    for dtype in _BITS:
        limits = np.finfo(dtype)
        if ops & _MAXIMA:
            infinities[dtype, float(limits.min)] = -np.inf
        if ops & _MINIMA:
            infinities[dtype, float(limits.max)] = np.inf
    has_places = bool(ops & _PLACES)

    def start(value: tir.PrimExpr) -> tir.PrimExpr | None:
        if isinstance(value, tir.Broadcast):
            one = start(value.value)
            return None if one is None else tir.Broadcast(one, value.lanes)
        if isinstance(value, tir.IntImm) and has_places and value.value == _BEFORE_ALL:
            return tir.IntImm(value.dtype, 0)
        if not isinstance(value, tir.FloatImm) or (value.dtype, value.value) not in infinities:
            return None
        return written(value.dtype, infinities[value.dtype, value.value])

    return start


def _number(dtype: str, value: float) -> tir.PrimExpr:
    return tir.FloatImm(dtype, value)


def _bits(dtype: str, value: float) -> tir.PrimExpr:
    whole = _BITS[dtype]
    bits = tir.IntImm(whole, int(np.array(value, dtype).view(whole)))
    return tir.call_intrin(dtype, "tir.reinterpret", bits)


def _with_identity(node: tir.AttrStmt, start: _Start) -> tir.AttrStmt | None:
    """Of a fold by all threads of a block, which says itself what it begins from."""
    if not isinstance(node.node, tir.CommReducer):
        return None
    reducer, identity, is_same = node.node, [], True
    for each in reducer.identity_element:
        other = start(each)
        is_same &= other is None
        identity.append(each if other is None else other)
    if is_same:
        return None
    combiner = tir.CommReducer(reducer.lhs, reducer.rhs, reducer.result, identity)
    return tir.AttrStmt(combiner, node.attr_key, node.value, node.body)


def _with_padding(node: tir.Call, start: _Start) -> tir.Call | None:
    """What a pool reads: an element of the map, or what is around it."""
    if getattr(node.op, "name", "") != "tir.if_then_else":
        return None
    is_inside, element, around = node.args
    value = start(around)
    return None if value is None else tir.Call(node.dtype, node.op, [is_inside, element, value])
