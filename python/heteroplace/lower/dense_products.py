"""Products of matrices for devices other than CPUs -> dense layers, for which TVM has schedules.

    nn.matmul(%x, %w)  ==>  nn.dense(%x, transpose(%w))

TVM cannot compile its own `nn.matmul` on GPUs in all forms.
"""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.relay.expressions import function_pass, is_op_call, rebuilt, spanned
from heteroplace.relay.products import operands_of

_OPS = ("nn.matmul",)


def DenseProducts() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass. The types of the result are not inferred."""

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        is_product = is_op_call(old, "nn.matmul") and operands_of(old) is not None
        return _as_dense(new, old) if is_product else new

    return function_pass(
        "DenseProducts", lambda function: rebuilt(function, rewrite, ops=_OPS), ops=_OPS
    )


def _as_dense(new: relay.Call, old: relay.Call) -> relay.Call:
    a, b = new.args
    if old.attrs.transpose_a:
        a = spanned(relay.transpose(a), old.span)
    if not old.attrs.transpose_b:
        b = spanned(relay.transpose(b), old.span)
    return spanned(relay.nn.dense(a, b, out_dtype=str(old.attrs.out_dtype)), old.span)
