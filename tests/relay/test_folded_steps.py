"""A step of quantisation in the scale before: the numbers, and where it stays a division."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from numpy_relay import executor_by_numpy
from relay_models import var
from tvm import relay

from heteroplace.relay.expressions import is_op_call, post_order
from heteroplace.relay.tasks.folded_steps import FoldedSteps

pytestmark = pytest.mark.relay

SHIFT = 3.0 * 2**22
STEP = 0.037
SHAPE = (2, 3, 50, 4)
SCALES = np.array([0.011, 0.5, 3.7], "float32").reshape(3, 1, 1)
BIAS = np.array([-4.0, 0.0, 9.5], "float32").reshape(3, 1, 1)
Between = Callable[[relay.Expr], relay.Expr]


def scaled() -> relay.Expr:
    return relay.cast(var("x", SHAPE, "int32"), "float32") * relay.const(SCALES)


def rounded(value: relay.Expr, step: relay.Expr | None = None) -> relay.Expr:
    """As QuantizeLinear is imported."""
    steps = relay.divide(value, relay.const(STEP) if step is None else step) + relay.const(SHIFT)
    whole = relay.clip(steps, SHIFT - 2**19, SHIFT + 2**19) - relay.const(SHIFT)
    return relay.cast(relay.clip(whole + relay.const(7.0), 0, 255), "uint8")


def module(body: relay.Expr) -> tvm.IRModule:
    function = relay.Function(relay.analysis.free_vars(body), body)
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))


def num_divisions(mod: tvm.IRModule) -> int:
    return sum(is_op_call(node, "divide") for node in post_order(mod["main"].body))


def both(body: relay.Expr) -> tuple[tvm.IRModule, tvm.IRModule]:
    before = module(body)
    return before, relay.transform.InferType()(FoldedSteps()(before))


@pytest.mark.parametrize(
    "between",
    [
        lambda value: value,
        relay.nn.relu,
        lambda value: relay.nn.relu(value + relay.const(BIAS)),
        lambda value: relay.clip(value - relay.const(BIAS), 0, 6),
        lambda value: relay.nn.bias_add(value, relay.const(BIAS.reshape(3))),
        lambda value: relay.reshape(relay.cast(value, "float32"), (2, -1)),
    ],
)
def test_steps_differ_by_one_at_most_and_rarely(between: Between) -> None:
    before, after = both(rounded(between(scaled())))
    assert (num_divisions(before), num_divisions(after)) == (1, 0)
    x = np.random.default_rng(0).integers(-600, 600, SHAPE).astype("int32")
    results = [executor_by_numpy(mod)({"x": x})[0].astype(int) for mod in (before, after)]
    assert len(np.unique(results[0])) > 20
    assert np.abs(results[0] - results[1]).max() <= 1
    assert np.mean(results[0] != results[1]) < 0.02


@pytest.mark.parametrize(
    "body",
    [
        rounded(var("x", SHAPE)),  # no product of whole numbers
        rounded(var("x", SHAPE) * relay.const(SCALES)),
        rounded(relay.tanh(scaled())),
        rounded(scaled(), relay.const(-STEP)),
        rounded(scaled(), relay.const(1e-39)),  # a scale becomes infinite
        rounded(scaled(), var("step", ())),
        relay.divide(scaled(), relay.const(STEP)),  # nothing is rounded
    ],
)
def test_other_divisions_stay(body: relay.Expr) -> None:
    before, after = both(body)
    assert num_divisions(before) == num_divisions(after) == 1
    assert tvm.ir.structural_equal(before, after)


def test_a_value_with_another_reader_stays() -> None:
    value = relay.nn.relu(scaled())
    before, after = both(relay.Tuple([rounded(value), value]))
    assert tvm.ir.structural_equal(before, after)


def test_the_second_of_two_layers_is_folded_too() -> None:
    first = rounded(scaled())
    second = relay.cast(relay.cast(first, "int32"), "float32") * relay.const(SCALES)
    before, after = both(rounded(second))
    assert (num_divisions(before), num_divisions(after)) == (2, 0)
