"""Tensors of no elements -> constants, and what is made of them without them.

    concatenate((%x, strided_slice(%y, begin=[1], end=[1])))  ==>  %x
    nn.dense(%x [3, 0], %w [5, 0])                             ==>  zeros [3, 5]

They come from caches that are empty yet and slices of nothing. TVM's kernels divide by their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relay

from heteroplace.relay.expressions import function_pass, is_dataflow, rebuilt

_NOTHING_ADDED = {"nn.dense": 0, "nn.batch_matmul": 0, "nn.matmul": 0, "sum": 0, "prod": 1}
"""Ops -> what each element of a result is that is made of no elements."""
_UPDATES = frozenset({"scatter_elements", "scatter_nd"})
"""Ops of (data, places, updates)."""


def WithoutEmpties() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass; it leaves alone what has dynamic sizes."""

    def run(function: relay.Function) -> relay.Function:
        return rebuilt(function, _without) if is_dataflow(function) else function

    return function_pass("WithoutEmpties", run)


def _without(old: relay.Expr, new: relay.Expr) -> relay.Expr:
    if not isinstance(old, (relay.Call, relay.TupleGetItem)):
        return new
    shape = _shape(old)
    if shape is None:
        return new
    if 0 in shape:
        return relay.const(np.zeros(shape, _numpy(old)), old.checked_type.dtype)
    if not isinstance(old, relay.Call) or not isinstance(old.op, tvm.ir.Op):
        return new
    name = old.op.name
    if name == "concatenate" and isinstance(old.args[0], relay.Tuple):
        return _joined(old, new)
    if name in _UPDATES and _is_empty(old.args[2]):
        return new.args[0]
    if not any(_is_empty(argument) for argument in old.args):
        return new
    if name == "nn.pad":
        return relay.broadcast_to(relay.cast(new.args[1], old.checked_type.dtype), shape)
    if name in _NOTHING_ADDED:
        filled = np.full(shape, _NOTHING_ADDED[name], _numpy(old))
        return relay.const(filled, old.checked_type.dtype)
    return new


def _joined(old: relay.Call, new: relay.Call) -> relay.Expr:
    """Return a concatenation of what has elements."""
    pairs = zip(old.args[0].fields, new.args[0].fields, strict=True)
    kept = [field for before, field in pairs if not _is_empty(before)]
    if len(kept) == len(old.args[0].fields):
        return new
    if len(kept) == 1:
        return kept[0]
    return relay.Call(new.op, [relay.Tuple(kept)], new.attrs, new.type_args, new.span)


def _is_empty(expr: relay.Expr) -> bool:
    return 0 in (_shape(expr) or ())


def _shape(expr: relay.Expr) -> Sequence[int] | None:
    """The sizes of a tensor; None: it is none, or its sizes are not known."""
    type_ = expr.checked_type
    if not isinstance(type_, relay.TensorType):
        return None
    sizes = list(type_.shape)
    if not all(isinstance(size, tvm.tir.IntImm) for size in sizes):
        return None
    return [size.value for size in sizes]


def _numpy(expr: relay.Expr) -> str:
    """The type of numpy's array for a constant, which Relay casts where numpy has none."""
    dtype = str(expr.checked_type.dtype)
    return "float32" if dtype == "bfloat16" else dtype
