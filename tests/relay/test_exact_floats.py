"""Arithmetic of floats keeps its order, NaN and infinity through all of TVM's simplifiers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_models as om
import pytest
import tvm
from relay_models import cpu_cluster, mixed_cluster, module, random_costs, var
from tvm import relay, tir

import heteroplace as hp
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.relay.tasks.prepare import prepare
from heteroplace.tir.exact_floats import ExactFloats

pytestmark = pytest.mark.relay

_SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.3, 3e38, 1e-30, 1e-40, -7.3, 1e8]
_ROUNDER = 12582912.0
"""1.5 * 2^23: adding it to a float32 rounds to a whole number."""

Form = Callable[[Any, Any, Callable[[float], Any]], Any]
"""(x, y, constant) -> a value, for Relay and for numpy."""

ORDERS: dict[str, Form] = {
    "(x + c) + -c": lambda x, y, c: (x + c(_ROUNDER)) + c(-_ROUNDER),
    "(x + c) - c": lambda x, y, c: (x + c(_ROUNDER)) - c(_ROUNDER),
    "(x - c) + c": lambda x, y, c: (x - c(_ROUNDER)) + c(_ROUNDER),
    "c - (x + c)": lambda x, y, c: c(_ROUNDER) - (x + c(_ROUNDER)),
    "(x + y) - y": lambda x, y, c: (x + y) - y,
    "x - (x + y)": lambda x, y, c: x - (x + y),
    "(x - y) + y": lambda x, y, c: (x - y) + y,
    "(x * c) * d": lambda x, y, c: (x * c(1e38)) * c(1e-38),
    "(x * c) / c": lambda x, y, c: (x * c(1e38)) / c(1e38),
    "(x / c) * c": lambda x, y, c: (x / c(1e38)) * c(1e38),
    "(x / c) / c": lambda x, y, c: (x / c(1e38)) / c(1e38),
    "x / tiny": lambda x, y, c: x / c(1e-40),
    "(x * y) / y": lambda x, y, c: (x * y) / y,
}
NANS: dict[str, Form] = {
    "x * 0": lambda x, y, c: x * c(0),
    "0 / x": lambda x, y, c: c(0) / x,
    "0 - x": lambda x, y, c: c(0) - x,
    "x - x": lambda x, y, c: x - x,
    "x / x": lambda x, y, c: x / x,
    "x * 3 - x * 3": lambda x, y, c: x * c(3) - x * c(3),
}
COMPARISONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "x == x": (lambda x, y: relay.equal(x, x), lambda x, y: x == x),
    "x != x": (lambda x, y: relay.not_equal(x, x), lambda x, y: x != x),
    "x != y": (relay.not_equal, np.not_equal),
    "x == y": (relay.equal, np.equal),
    "x < y": (relay.less, np.less),
    "x >= y": (relay.greater_equal, np.greater_equal),
    "x <= x": (lambda x, y: relay.less_equal(x, x), lambda x, y: x <= x),
    "not x < y": (lambda x, y: relay.logical_not(relay.less(x, y)), lambda x, y: ~(x < y)),
    "x < y or x >= y": (
        lambda x, y: relay.logical_or(relay.less(x, y), relay.greater_equal(x, y)),
        lambda x, y: (x < y) | (x >= y),
    ),
    "where in where": (
        lambda x, y: relay.where(
            relay.less(x, y), -x, relay.where(relay.greater_equal(x, y), x * y, relay.exp(y))
        ),
        lambda x, y: np.where(x < y, -x, np.where(x >= y, x * y, np.exp(y))),
    ),
    "leaky relu of slope 0": (
        lambda x, y: relay.nn.leaky_relu(x, 0.0),
        lambda x, y: np.where(x > 0, x, x * np.float32(0)),
    ),
}


def _special_pairs() -> tuple[np.ndarray, np.ndarray]:
    x, y = np.meshgrid(np.array(_SPECIAL, "float32"), np.array(_SPECIAL, "float32"))
    return x.ravel(), y.ravel()


def _constant(value: float) -> relay.Constant:
    return relay.const(np.float32(value))


def _relay_forms() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    def pair(form: Form) -> tuple[Callable[..., Any], Callable[..., Any]]:
        return lambda x, y: form(x, y, _constant), lambda x, y: form(x, y, np.float32)

    return {**{name: pair(form) for name, form in {**ORDERS, **NANS}.items()}, **COMPARISONS}


@pytest.mark.costly(12)
def test_every_form_is_computed_as_by_numpy() -> None:
    forms = _relay_forms()
    first, second = _special_pairs()
    x, y = var("x", first.shape), var("y", second.shape)
    mod = module([x, y], relay.Tuple([of_relay(x, y) for of_relay, _ in forms.values()]))
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(mod, cpu_cluster(), {}, costs=random_costs)
    actual = hp.Executor(executable).run(x=first, y=second)
    with np.errstate(all="ignore"):
        for (name, (_, of_numpy)), value in zip(forms.items(), actual, strict=True):
            np.testing.assert_allclose(
                value, of_numpy(first, second), rtol=1e-6, atol=0, err_msg=name
            )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_single_numbers_are_compared_as_by_numpy(dtype: str) -> None:
    """LLVM takes the opposite condition of a single comparison, and a NaN passes both."""
    names = ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"]
    x, y = var("x", (1,), dtype), var("y", (1,), dtype)
    one, two = relay.const(1.0, dtype), relay.const(2.0, dtype)
    chosen = [relay.where(getattr(relay, name)(x, y), one, two) for name in names]
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(
            module([x, y], relay.Tuple(chosen)), cpu_cluster(), {}, costs=random_costs
        )
    executor = hp.Executor(executable)
    for first, second in zip(*_special_pairs(), strict=True):
        operands = np.array([first], dtype), np.array([second], dtype)
        actual = executor.run(x=operands[0], y=operands[1])
        for name, value in zip(names, actual, strict=True):
            expected = np.where(getattr(np, name)(*operands), 1, 2)
            np.testing.assert_array_equal(value, expected, err_msg=f"{name}({first}, {second})")


@pytest.mark.costly(5)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_form_compiles_for_a_gpu(dtype: str) -> None:
    x, y = var("x", (8,), dtype), var("y", (8,), dtype)

    def constant(value: float) -> relay.Constant:
        return relay.const(value, dtype)

    with np.errstate(over="ignore"):
        forms = [form(x, y, constant) for form in [*ORDERS.values(), *NANS.values()]]
    mod = module([x, y], relay.Tuple(forms + [form(x, y) for form, _ in COMPARISONS.values()]))
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(mod, mixed_cluster(), {}, costs=random_costs, pin={"*": "gpu0"})
    graph = executable.solution.graph
    assert set(executable.solution.plan.placement(len(graph.tasks))) == {1}


@pytest.mark.parametrize("op", ["Add", "Sub"])
def test_the_rounding_trick_of_a_model_rounds(op: str) -> None:
    limits = {"b": np.float32(_ROUNDER), "c": np.float32(-_ROUNDER if op == "Add" else _ROUNDER)}
    nodes = [om.node("Add", "x b", "t"), om.node(op, "t c", "y")]
    model = om.make_model(nodes, {"x": (4, 16)}, ["y"], limits)
    x = 5 * np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    with tvm.transform.PassContext(opt_level=3):
        mod = from_onnx(model, simplify=False).mod
        executable = hp.build(mod, cpu_cluster(), {}, costs=random_costs)
    (y,) = hp.Executor(executable).run(x=x)
    np.testing.assert_array_equal(y, np.rint(x))


def test_a_softmax_of_numbers_that_are_none_is_that_of_numpy() -> None:
    rows = np.random.default_rng(0).standard_normal((5, 37)).astype(np.float32)
    rows[0, 1] = rows[1, -1] = np.nan
    rows[2, :], rows[3, 4], rows[4, 5:9] = -np.inf, np.inf, -np.inf
    x = var("x", rows.shape)
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(
            module([x], relay.nn.softmax(x)), cpu_cluster(), {}, costs=random_costs
        )
    (actual,) = hp.Executor(executable).run(x=rows)
    with np.errstate(invalid="ignore"):
        powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    np.testing.assert_allclose(actual, powers / powers.sum(axis=1, keepdims=True), atol=1e-6)


def _ops(body: Callable[[relay.Expr], relay.Expr]) -> list[str]:
    x = var("x", (4,))
    with tvm.transform.PassContext(opt_level=3):
        main = prepare(module([x], body(x)))["main"]
    return [node.op.name for node in _calls(main)]


def _calls(main: relay.Function) -> list[relay.Call]:
    calls: list[relay.Call] = []
    relay.analysis.post_order_visit(
        main.body, lambda node: calls.append(node) if isinstance(node, relay.Call) else None
    )
    return calls


def test_relay_passes_do_not_reassociate_floats() -> None:
    c = _constant
    assert _ops(lambda x: (x + c(3e7)) + c(-3e7)) == ["add", "add"]
    assert _ops(lambda x: (x * c(1e38)) * c(1e-38)) == ["multiply", "multiply"]
    assert _ops(lambda x: (x + c(3e7)) * c(3)) == ["add", "multiply"]
    assert _ops(lambda x: (x + c(3e7)) + relay.zeros((4,), "float32") + c(-3e7)) == ["add", "add"]


def test_a_rounded_sum_of_a_convolution_is_not_scaled_before_it_is_rounded() -> None:
    """FoldScaleAxis still moves the scale of a batch norm into the weights."""
    x = var("x", (1, 4, 8, 8))
    weights = relay.const(np.ones((4, 4, 3, 3), "float32"))
    scale = relay.const(np.full((4, 1, 1), 0.3, "float32"))
    conv = relay.nn.conv2d(x, weights, channels=4, kernel_size=(3, 3))

    def scales_left(body: relay.Expr) -> int:
        with tvm.transform.PassContext(opt_level=3):
            calls = _calls(prepare(module([x], body))["main"])
        return sum(call.op.name == "multiply" for call in calls)

    bias = relay.const(np.ones((4, 1, 1), "float32"))
    assert scales_left((conv + bias) * scale) == 0
    large = relay.const(np.full((4, 1, 1), _ROUNDER, "float32"))
    assert scales_left(((conv + large) - large) * scale) == 1


@pytest.mark.parametrize("rows", [1, 3])
def test_a_computed_gate_scales_the_product_and_not_its_matrix(rows: int) -> None:
    """FoldScaleAxis would scale a matrix by the gate of a single row, in every run."""
    x = var("x", (rows, 4))

    def product(data: relay.Expr) -> relay.Expr:
        return relay.nn.dense(data, relay.const(np.random.random((4, 4)).astype("float32")))

    gated = product(relay.multiply(relay.sigmoid(product(x)), product(x)))
    with tvm.transform.PassContext(opt_level=3):
        calls = _calls(prepare(module([x], gated))["main"])
    products = [call for call in calls if call.op.name == "nn.dense"]
    assert [isinstance(call.args[1], relay.Constant) for call in products] == [True] * 3
    scaled = relay.multiply(product(x), relay.const(np.float32([[1, 2, 3, 4]])))
    with tvm.transform.PassContext(opt_level=3):
        calls = _calls(prepare(module([x], scaled))["main"])
    assert [call.op.name for call in calls] == ["nn.dense"]


def test_integers_are_simplified_as_before() -> None:
    x = var("x", (4,), "int32")
    one = relay.const(1, "int32")
    with tvm.transform.PassContext(opt_level=3):
        main = prepare(module([x], (x + one) + one))["main"]
    assert [call.op.name for call in _calls(main)] == ["add"]


def test_lowered_floats_stay_and_integers_do_not() -> None:
    def simplified(dtype: str) -> str:
        x, index = tir.decl_buffer((8,), dtype, "x"), tir.Var("i", "int32")
        y = tir.decl_buffer((8,), dtype, "y")
        value = x[index] * tir.const(0, dtype) + (x[index] - x[index + 0])
        body = tir.For(index, 0, 8, 0, tir.BufferStore(y, value, [index]))
        functions = ExactFloats()(tvm.IRModule({"f": tir.PrimFunc([x, y], body)}))
        return str(tir.transform.Simplify()(functions)["f"].body)

    assert "x[i]" in simplified("float32")
    assert "x[i]" not in simplified("int32")
