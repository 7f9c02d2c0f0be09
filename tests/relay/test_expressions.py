"""Tools on Relay: what is not changed is not copied."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relay_models import var
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.relay.expressions import function_pass, is_op_call, rebuilt, static_shape


def module() -> tvm.IRModule:
    """relu(x + 1) of a typed module."""
    y = relay.nn.relu(relay.add(var("x", (2, 3)), relay.const(np.float32(1))))
    mod = tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(y), y))
    return relay.transform.InferType()(mod)


def to_tanh(function: relay.Function) -> relay.Function:
    """The function with tanh for relu."""

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        return relay.tanh(new.args[0]) if is_op_call(old, "nn.relu") else new

    return rebuilt(function, rewrite)


def test_a_function_in_which_nothing_changes_is_itself() -> None:
    main = module()["main"]
    assert rebuilt(main, lambda old, new: new).same_as(main)


def test_what_is_before_a_change_is_kept() -> None:
    main = module()["main"]
    changed = to_tanh(main)
    assert changed.body.op.name == "tanh"
    assert changed.body.args[0].same_as(main.body.args[0])
    assert main.body.op.name == "nn.relu"


def test_a_pass_leaves_modules_without_its_ops() -> None:
    mod = module().with_attr("kept", tvm.runtime.String("yes"))
    runs: list[relay.Function] = []

    def run(function: relay.Function) -> relay.Function:
        runs.append(function)
        return to_tanh(function)

    assert function_pass("Other", run, ops=("nn.conv2d",))(mod).same_as(mod)
    assert not runs
    made = function_pass("Tanh", run, ops=("nn.relu",))(mod)
    assert made["main"].body.op.name == "tanh"
    assert made.attrs["kept"] == "yes"
    assert mod["main"].body.op.name == "nn.relu"
    again = function_pass("Tanh", run)(made)
    tvm.ir.assert_structural_equal(again, relay.transform.InferType()(made))


def test_shapes_are_static() -> None:
    assert static_shape(relay.TensorType((2, 3))) == (2, 3)
    assert static_shape(relay.TensorType(())) == ()
    with pytest.raises(UnsupportedRelayError, match="dynamic shape"):
        static_shape(relay.TensorType((2, relay.Any())))
