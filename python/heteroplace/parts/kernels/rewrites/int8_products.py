"""Products of bytes with constant weights of 8 bits -> products by VNNI.

    nn.dense(%x of uint8, const of int8)  ==>  heteroplace_int8_matmul(%x, panels)

TVM's own kernel takes several times as long. It multiplies one number at a time if the columns are
no whole vectors.
"""

from __future__ import annotations

from tvm import relay

from heteroplace.parts.kernels.cpu.grouped_matmul_op import INT8_MATMUL
from heteroplace.relay.expressions import is_op_call, rebuilt, spanned, static_shape

_MIN_ROWS = 2
"""Of a tile."""


def with_int8_products(function: relay.Function) -> relay.Function:
    """Return a typed function with such products replaced; weights that are one stay one."""
    panels: dict[int, relay.Constant] = {}

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if not is_op_call(old, "nn.dense"):
            return new
        data, weights = old.args
        types = [str(each.checked_type.dtype) for each in (data, weights, old)]
        if types != ["uint8", "int8", "int32"] or not isinstance(weights, relay.Constant):
            return new
        (rows, depth), (columns, _) = map(static_shape, (data.checked_type, weights.checked_type))
        if not INT8_MATMUL.can_multiply(max(rows, _MIN_ROWS), columns, depth):
            return new
        key = weights.data.handle.contents.data
        if key not in panels:
            panels[key] = relay.const(INT8_MATMUL.panels(weights.data.numpy()))
        a = new.args[0]
        if rows < _MIN_ROWS:
            a = spanned(relay.broadcast_to(a, (_MIN_ROWS, depth)), old.span)
        call = spanned(INT8_MATMUL(a, panels[key], columns), old.span)
        if rows < _MIN_ROWS:
            call = spanned(relay.strided_slice(call, [0], [rows], axes=[0]), old.span)
        return call

    return rebuilt(function, rewrite)
