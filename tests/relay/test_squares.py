"""Second powers as products, and nothing else."""

from __future__ import annotations

import tvm
from relay_models import module, var
from tvm import relay

from heteroplace.codegen.squares import Squares
from heteroplace.relay.expressions import post_order


def op_names(body: relay.Expr, *inputs: relay.Var) -> list[str]:
    passes = [relay.transform.InferType(), Squares(), relay.transform.InferType()]
    with tvm.transform.PassContext(opt_level=3):
        mod = tvm.transform.Sequential(passes)(module(list(inputs), body))
    return [node.op.name for node in post_order(mod["main"].body) if isinstance(node, relay.Call)]


def test_a_square_is_a_product() -> None:
    x = var("x", (3, 4))
    assert op_names(relay.power(relay.exp(x), relay.const(2.0)), x) == ["exp", "multiply"]


def test_other_powers_stay() -> None:
    x, y, whole = var("x", (3, 4)), var("y", (3, 4)), var("whole", (3, 4), "int32")
    for power in (
        relay.power(x, relay.const(3.0)),
        relay.power(x, y),
        relay.power(whole, relay.const(2)),
        relay.power(x, relay.const([[[2.0]], [[2.0]]], "float32")),
    ):
        assert op_names(power, *relay.analysis.free_vars(power)) == ["power"]
