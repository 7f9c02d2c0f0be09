"""Powers as products and roots, and nothing else."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import tvm
from hypothesis import given
from relay_models import module, stock_outputs, var
from tvm import relay

from heteroplace.parts.kernels.rewrites.powers import Powers
from heteroplace.relay.expressions import post_order
from tests.corpus import corpus
from tests.strategies import exact_cases


def rewritten(body: relay.Expr) -> tvm.IRModule:
    passes = [relay.transform.InferType(), Powers(), relay.transform.InferType()]
    with tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(module(list(relay.analysis.free_vars(body)), body))


def op_names(body: relay.Expr) -> list[str]:
    nodes = post_order(rewritten(body)["main"].body)
    return [node.op.name for node in nodes if isinstance(node, relay.Call)]


@pytest.mark.parametrize("exponent", [2, 3])
def test_a_small_power_is_a_product(exponent: int) -> None:
    power = relay.power(relay.exp(var("x", (3, 4))), relay.const(float(exponent)))
    assert op_names(power) == ["exp", *["multiply"] * (exponent - 1)]


def test_other_powers_stay() -> None:
    x, y, whole = var("x", (3, 4)), var("y", (3, 4)), var("whole", (3, 4), "int32")
    for power in (
        relay.power(x, relay.const(4.0)),
        relay.power(x, relay.const(-2.0)),
        relay.power(x, relay.const(2.5)),
        relay.power(x, y),
        relay.power(whole, relay.const(2)),
        relay.power(x, relay.const([[[2.0]], [[2.0]]], "float32")),
    ):
        assert op_names(power) == ["power"]


@pytest.mark.parametrize("changed", [{"beta": 0.5}, {"bias": 0.0}, {"alpha": -1.0}, {"size": 4}])
def test_other_norms_stay(changed: dict[str, float]) -> None:
    options = {"size": 5, "axis": 1, "bias": 2.0, "alpha": 1e-4, "beta": 0.75, **changed}
    assert op_names(relay.nn.lrn(var("x", (1, 8, 3, 3)), **options)) == ["nn.lrn"]


@corpus
def norms(random: Random) -> tuple[tuple[int, ...], dict[str, float]]:
    """A shape, and attributes of an LRN of it."""
    shape = tuple(random.randint(1, 9) for _ in range(4))
    options = {
        "size": random.choice([1, 3, 5, 7]),
        "axis": random.randrange(4),
        "bias": random.uniform(0.1, 3),
        "alpha": random.uniform(0, 2),
        "beta": 0.75,
    }
    return shape, options


@pytest.mark.costly
@exact_cases(10)
@given(norms())
def test_norms_are_those_of_stock_tvm(case: tuple[tuple[int, ...], dict[str, float]]) -> None:
    shape, options = case
    mod = rewritten(relay.nn.lrn(var("x", shape), **options))
    names = {node.op.name for node in post_order(mod["main"].body) if isinstance(node, relay.Call)}
    assert "nn.lrn" not in names
    x = np.random.default_rng(0).standard_normal(shape).astype("float32") * 3
    around = [(0, 0)] * 4
    around[options["axis"]] = (options["size"] // 2,) * 2
    squares = np.pad(x.astype("float64") ** 2, around)
    windows = np.lib.stride_tricks.sliding_window_view(squares, options["size"], options["axis"])
    mean = windows.sum(-1) * (options["alpha"] / options["size"])
    expected = x / (options["bias"] + mean) ** 0.75
    (found,) = stock_outputs(mod, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
