"""Tensors of no elements -> constants, and what is made of them without them.

    concatenate((%x, strided_slice(%y, begin=[1], end=[1])))  ==>  %x
    nn.dense(%x [3, 0], %w [5, 0])                             ==>  zeros [3, 5]

They come from caches that are empty yet and slices of nothing. TVM's kernels divide by their sizes.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.relay.expr_map import ExprSet
from heteroplace.relay.expressions import (
    function_pass,
    is_dataflow,
    op_name,
    post_order,
    rebuilt,
    static_shape,
)


def WithoutEmpties() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass; it leaves alone what has dynamic sizes."""

    def run(function: relay.Function) -> relay.Function:
        empty = ExprSet(filter(_is_empty, post_order(function.body)))
        if not empty or not is_dataflow(function):
            return function
        return rebuilt(function, partial(_without, empty))

    return function_pass("WithoutEmpties", run)


def _without(empty: ExprSet, old: relay.Expr, new: relay.Expr) -> relay.Expr:
    if old in empty and isinstance(old, (relay.Call, relay.TupleGetItem)):
        return _filled(old, 0)
    name = op_name(old)
    if name == "concatenate" and isinstance(old.args[0], relay.Tuple):
        return _joined(empty, old, new)
    if name is None or not any(argument in empty for argument in old.args[:]):
        return new
    if traits_of(name).kind == "update" and old.args[2] in empty:
        return new.args[0]
    if name == "nn.pad":
        type_ = old.checked_type
        return relay.broadcast_to(relay.cast(new.args[1], type_.dtype), static_shape(type_))
    value = traits_of(name).empty
    return new if value is None else _filled(old, value)


def _filled(expr: relay.Expr, value: int) -> relay.Expr:
    """Return a constant of an expression's type."""
    type_ = expr.checked_type
    return relay.const(np.full(static_shape(type_), value, _numpy(expr)), type_.dtype)


def _joined(empty: ExprSet, old: relay.Call, new: relay.Call) -> relay.Expr:
    """Return a concatenation of what has elements."""
    pairs = zip(old.args[0].fields, new.args[0].fields, strict=True)
    fields = [field for before, field in pairs if before not in empty]
    if len(fields) == len(old.args[0].fields):
        return new
    if len(fields) == 1:
        return fields[0]
    return relay.Call(new.op, [relay.Tuple(fields)], new.attrs, new.type_args, new.span)


def _is_empty(expr: relay.Expr) -> bool:
    """Say whether it is a tensor of no elements, all of whose sizes are known."""
    if isinstance(expr, (tvm.ir.Op, relay.Function)):
        return False
    type_ = expr.checked_type
    if not isinstance(type_, relay.TensorType):
        return False
    sizes = type_.shape[:]
    is_known = all(isinstance(size, tvm.tir.IntImm) for size in sizes)
    return is_known and any(size.value == 0 for size in sizes)


def _numpy(expr: relay.Expr) -> str:
    """The type of numpy's array for a constant, which Relay casts where numpy has none."""
    dtype = str(expr.checked_type.dtype)
    return "float32" if dtype == "bfloat16" else dtype
