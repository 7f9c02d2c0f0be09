"""prepare: TVM's own passes, target-neutral, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relay_models import conv, fire_modules, module, random_inputs, stock_outputs, var, weights
from tvm import relay

from heteroplace.relay.tasks.prepare import fuse, prefix_passes, prepare


def ops_of(mod: tvm.IRModule) -> list[str]:
    found: list[str] = []

    def visit(node: relay.Expr) -> None:
        if isinstance(node, relay.Call) and isinstance(node.op, tvm.ir.Op):
            found.append(node.op.name)

    relay.analysis.post_order_visit(mod["main"].body, visit)
    return found


@pytest.mark.costly
def test_batch_norm_is_folded_into_the_convolution() -> None:
    x = var("x", (1, 4, 8, 8))
    scale = [relay.const(np.full(4, value, "float32")) for value in (2.0, 0.5, 0.1, 1.5)]
    mod = module([x], relay.nn.relu(relay.nn.batch_norm(conv(x, 4, 4), *scale)[0]))
    with tvm.transform.PassContext(opt_level=3):
        prepared = prepare(mod)
    assert ops_of(prepared) == ["nn.conv2d", "add", "nn.relu"]
    inputs = random_inputs(mod)
    (actual,), (expected,) = stock_outputs(prepared, inputs), stock_outputs(mod, inputs)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_the_layout_of_no_target_is_chosen() -> None:
    with tvm.transform.PassContext(opt_level=3):
        prepared = prepare(fire_modules())
    assert "layout_transform" not in ops_of(prepared)
    assert not any("NCHWc" in name for name in ops_of(prepared))


def test_constant_parts_are_folded() -> None:
    x = var("x", (2, 4))
    folded = relay.multiply(relay.transpose(weights(4, 2)), relay.const(np.float32(2.0)))
    with tvm.transform.PassContext(opt_level=3):
        prepared = prepare(module([x], relay.add(x, folded)))
    assert ops_of(prepared) == ["add"]


def test_the_opt_level_of_the_context_counts() -> None:
    x = var("x", (2, 4))
    mod = module([x], relay.add(relay.nn.softmax(x), relay.nn.softmax(x)))
    for level, num_softmax in ((0, 2), (3, 1)):
        with tvm.transform.PassContext(opt_level=level):
            assert ops_of(prepare(mod)).count("nn.softmax") == num_softmax


def test_the_list_of_passes_is_that_of_tvm_plus_ours() -> None:
    own = [step.info.name for step in prefix_passes(is_homogeneous=True)]
    stock = tvm.get_global_func("relay.backend.GetPassPrefixSeq")(True, False).passes
    added = {"NumpyFoldConstant", "DoublesAsProducts", "InferType"}
    left_out = {"ToBasicBlockNormalForm", "InferType"}
    assert [name for name in own if name not in added] == [
        step.info.name for step in stock if step.info.name not in left_out
    ]
    neutral = [step.info.name for step in prefix_passes(is_homogeneous=False)]
    assert "AlterOpLayout" in own
    assert "AlterOpLayout" not in neutral


def test_fusing_leaves_only_calls_of_groups() -> None:
    with tvm.transform.PassContext(opt_level=3):
        main = fuse(prepare(fire_modules()))["main"]
    calls: list[relay.Call] = []

    def visit(node: relay.Expr) -> None:
        if isinstance(node, relay.Call) and isinstance(node.op, relay.Function):
            calls.append(node)

    relay.analysis.post_order_visit(main.body, visit)
    assert calls
    assert all(int(call.op.attrs["Primitive"]) == 1 for call in calls)
