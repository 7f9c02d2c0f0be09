"""Second powers -> products, which run on vectors.

TVM calls the C library for each element of a power.

    power(%x, 2)  ==>  multiply(%x, %x)
"""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.relay.expressions import is_op_call, post_order, rebuild


def Squares() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass. Types are not inferred."""

    def run(
        function: relay.Function, _mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> relay.Function:
        mapped: dict[relay.Expr, relay.Expr] = {}

        def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
            if not _is_square(old):
                return new
            made = relay.multiply(new.args[0], new.args[0])
            return relay.Call(made.op, made.args, None, None, old.span)

        rebuild(post_order(function.body), mapped, rewrite)
        return relay.Function(function.params, mapped[function.body], None, [], function.attrs)

    return relay.transform.function_pass(run, opt_level=3, name="Squares", required=["InferType"])


def _is_square(call: relay.Expr) -> bool:
    """Of floats, as those of whole numbers may overflow otherwise."""
    if not is_op_call(call, "power") or not isinstance(call.args[1], relay.Constant):
        return False
    exponent = call.args[1].data.numpy()
    has_its_shape = tvm.ir.structural_equal(call.args[0].checked_type, call.checked_type)
    return bool(exponent.dtype.kind == "f" and (exponent == 2).all()) and has_its_shape
