"""A scatter into a corner of a tensor -> one into all of a part of it, joined with the rest.

    scatter_elements(%x [9, 7, 5], %places [9, 7, 4], .., axis=0)  ==>
        concatenate((scatter_elements(%x[:, :, :4], %places, ..), %x[:, :, 4:]), axis=2)

TVM's kernels count the axes on each side of their own as one, by the extents of the places: where
another than the first of a side is shorter than that of the data, they write somewhere else.
"""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.relay.expressions import function_pass, is_dataflow, rebuilt, static_shape
from heteroplace.relay.tasks.fold import is_static
from heteroplace.relay.tasks.spans import with_span

_OP = "scatter_elements"


def CornerScatters() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass; it leaves alone what has dynamic sizes."""

    def run(function: relay.Function) -> relay.Function:
        return rebuilt(function, _whole, ops=(_OP,)) if is_dataflow(function) else function

    return function_pass("CornerScatters", run, ops=(_OP,))


def _whole(old: relay.Call, new: relay.Call) -> relay.Expr:
    types = [argument.checked_type for argument in old.args]
    if not all(map(is_static, types)):
        return new
    shape, places, _ = map(static_shape, types)
    own = int(old.attrs.axis) % len(shape)
    inner = [axis for axis in range(1, len(shape)) if axis not in (own, own + 1)]
    short = [axis for axis in inner if places[axis] < shape[axis]]
    if not short:
        return new
    data, indices, updates = new.args[:]
    ends = [places[axis] if axis in short else size for axis, size in enumerate(shape)]
    part = relay.strided_slice(data, [0] * len(shape), ends)
    whole = relay.Call(new.op, [part, indices, updates], new.attrs)
    for axis in short:
        begins = [0] * len(shape)
        begins[axis], ends[axis] = places[axis], shape[axis]
        whole = relay.concatenate([whole, relay.strided_slice(data, begins, ends)], axis)
    return with_span(whole, {data, indices, updates}, old.span)
