"""The gradient of each op is what finite differences say, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import tvm
from numpy_relay import run_by_numpy
from relay_models import module, stock_executor, var
from training_models import slopes
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.parts.parallel.training.backward import differentiate
from heteroplace.parts.parallel.training.gradients import MISSING, REPLACED
from heteroplace.parts.parallel.training.simplify import simplified
from heteroplace.parts.parallel.training.step_spans import name_calls
from heteroplace.relay.expressions import post_order, static_shape

pytestmark = pytest.mark.relay

Build = Callable[..., relay.Expr]


class Case(NamedTuple):
    """An op on some operands; all of them are differentiated."""

    shapes: tuple[tuple[int, ...], ...]
    build: Build
    is_positive: bool = False


def const(values: object, dtype: str = "int64") -> relay.Constant:
    return relay.const(np.asarray(values), dtype)


def split_parts(x: relay.Expr) -> relay.Expr:
    parts = relay.split(x, [3, 4], axis=-1)
    return relay.concatenate([parts[2] * relay.exp(parts[0]), parts[1]], axis=1)


def unread_part(x: relay.Expr) -> relay.Expr:
    return relay.split(x, 3, axis=0)[1]


def layer_norm(x: relay.Expr, gamma: relay.Expr, beta: relay.Expr) -> relay.Expr:
    return relay.nn.layer_norm(x, gamma, beta, axis=-1, epsilon=1e-5)


def middle_norm(x: relay.Expr, gamma: relay.Expr, beta: relay.Expr) -> relay.Expr:
    return relay.nn.layer_norm(x, gamma, beta, axis=1, epsilon=1e-2)


def unscaled_norm(x: relay.Expr, gamma: relay.Expr, beta: relay.Expr) -> relay.Expr:
    return relay.nn.layer_norm(x, gamma, beta, scale=False, center=False) + gamma * beta


def picked(x: relay.Expr) -> relay.Expr:
    found = relay.strided_slice(x, [1, -1], [5, 0], [2, -2])
    sized = relay.strided_slice(x, [0, 3], [2, -1], slice_mode="size")
    return relay.stack([found, sized], axis=0)


def spread_around(exclude: bool, unbiased: bool) -> Build:
    """The variance around any mean: that of the data is only one of them."""

    def build(x: relay.Expr, mean: relay.Expr) -> relay.Expr:
        return relay.op._make._variance(x, mean, [1], False, exclude, unbiased)

    return build


def gaps(x: relay.Expr, w: relay.Expr) -> relay.Expr:
    return relay.nn.conv2d(x, w, padding=(2, 1), dilation=(2, 3), kernel_size=(3, 2))


def convolved(x: relay.Expr, w: relay.Expr) -> relay.Expr:
    return relay.nn.conv2d(x, w, padding=(1, 1), channels=3, kernel_size=(3, 3))


def indexed(indices: object, axis: int | None, mode: str = "clip") -> Build:
    return lambda x: relay.take(x, const(indices), axis=axis, mode=mode)


def product(transpose_a: bool, transpose_b: bool) -> Build:
    return lambda a, b: relay.nn.batch_matmul(
        a, b, transpose_a=transpose_a, transpose_b=transpose_b
    )


M = (3, 5)
OURS = {
    "split": Case(((3, 7),), split_parts),
    "power_3": Case((M,), lambda x: relay.power(x, relay.const(3.0, "float64"))),
    "power": Case((M, (5,)), relay.power, True),
    "rsqrt": Case((M,), relay.rsqrt, True),
    "layer_norm": Case(((2, 3, 4), (3,), (3,)), middle_norm),
    "broadcast_to": Case(((1, 5),), lambda x: relay.broadcast_to(x, (2, 3, 5))),
    "max": Case(((2, 3),), lambda x: relay.max(x, keepdims=True)),
    "maximum": Case((M, (5,)), relay.maximum),
    "minimum": Case((M, (3, 1)), relay.minimum),
    "min": Case(((2, 3, 4),), lambda x: relay.min(x, axis=[0, -1])),
    "leaky_relu": Case((M,), lambda x: relay.nn.leaky_relu(x, 0.1)),
    "conv2d": Case(((1, 2, 4, 4), (3, 2, 3, 3)), convolved),
    "max_pool2d": Case(((1, 2, 4, 6),), lambda x: relay.nn.max_pool2d(x, (2, 3), (2, 3))),
    "avg_pool2d": Case(((1, 2, 5, 7),), lambda x: relay.nn.avg_pool2d(x, (2, 3), (2, 3))),
    "global_avg_pool2d": Case(((1, 2, 3, 4),), relay.nn.global_avg_pool2d),
    "pad": Case((M,), lambda x: relay.nn.pad(x, ((1, 0), (2, 3)), const(0, "float64"))),
    "abs": Case((M,), relay.abs),
    "variance": Case((M, (3, 1)), spread_around(False, False)),
    "repeat": Case((M,), lambda x: relay.repeat(x, 3, axis=-1)),
    "tile": Case((M,), lambda x: relay.tile(x, (2, 1, 3))),
    "reverse": Case((M,), lambda x: relay.reverse(x, axis=1)),
    "clip": Case((M,), lambda x: relay.clip(x, -0.5, 0.75)),
    "relu": Case((M,), relay.nn.relu),
    "slice": Case(((6, 5),), picked),
    "take_rows": Case(((6, 3),), indexed([[0, 5, 2], [2, 2, 1]], 0)),
    "take_columns": Case(((2, 4, 3),), indexed([[3, 3], [0, 1]], -1)),
}
"""What TVM lacks, or has in another form."""
MORE = {
    "split_of_which_one_part_is_read": Case(((6, 2),), unread_part),
    "power_2": Case((M,), lambda x: relay.power(x, relay.const(2.0, "float64"))),
    "power_half": Case((M,), lambda x: relay.power(x, relay.const(-0.5, "float64")), True),
    "layer_norm_of_the_last_axis": Case(((2, 3, 4), (4,), (4,)), layer_norm),
    "layer_norm_unscaled": Case(((2, 3), (3,), (3,)), unscaled_norm),
    "min_kept": Case(((2, 3, 4),), lambda x: relay.min(x, axis=[1], keepdims=True)),
    "slice_of_axis": Case(((6, 5),), lambda x: relay.strided_slice(x, [1], [4], axes=[1])),
    "slice_of_few_steps": Case(((6, 5),), lambda x: relay.strided_slice(x, [0, 1], [6, 5], [2])),
    "slice_of_three_axes": Case(
        ((6, 5, 3),), lambda x: relay.strided_slice(x, [1, 0, 0], [6, 5, 2], [2, 3])
    ),
    "slice_to_the_end": Case(((6, 5),), lambda x: relay.strided_slice(x, [-4, 1], [100, -1])),
    "take_out_of_range": Case(((4, 3),), indexed([-7, 9, 2], 0)),
    "take_wrapped": Case(((4, 3),), indexed([-7, 9, 2], 0, "wrap")),
    "take_one": Case(((2, 4, 3),), indexed(2, 1)),
    "take_flat": Case(((2, 4),), indexed([7, 0, 7], None)),
    # Those of TVM that the transformers need.
    "add": Case((M, (5,)), relay.add),
    "divide": Case((M, (3, 1)), relay.divide, True),
    "tanh": Case((M,), relay.tanh),
    "erf": Case((M,), relay.erf),
    "sqrt": Case((M,), relay.sqrt, True),
    "softmax": Case(((2, 3, 4),), lambda x: relay.nn.softmax(x, axis=-1)),
    "log_softmax": Case((M,), lambda x: relay.nn.log_softmax(x, axis=-1)),
    "sigmoid": Case((M,), relay.sigmoid),
    "mean": Case(((2, 3, 4),), lambda x: relay.mean(x, axis=[-1, 0])),
    "variance_around_its_mean": Case((M,), lambda x: relay.variance(x, axis=1)),
    "variance_unbiased": Case((M, (1, 5)), spread_around(True, True)),
    "conv2d_of_gaps": Case(((1, 2, 5, 7), (3, 2, 3, 2)), gaps),
    "where": Case((M, (5,)), lambda x, y: relay.where(relay.greater(x, y), x, y * x)),
    "dense_twice": Case(((3, 4), (4, 4)), lambda x, w: relay.nn.dense(relay.nn.dense(x, w), w)),
    "batch_matmul_nt": Case(((2, 3, 4), (2, 5, 4)), product(False, True)),
    "batch_matmul_nn": Case(((2, 3, 4), (2, 4, 5)), product(False, False)),
    "batch_matmul_tn": Case(((2, 4, 3), (2, 4, 5)), product(True, False)),
    "batch_matmul_broadcast": Case(((1, 3, 4), (2, 5, 4)), product(False, True)),
    "matmul": Case(((3, 4), (4, 5)), relay.nn.matmul),
    "bias_add": Case((M, (5,)), lambda x, b: relay.nn.bias_add(x, b, axis=-1)),
    "expand_dims": Case((M,), lambda x: relay.squeeze(relay.expand_dims(x, -2, 2), [1])),
    "stack": Case((M, M), lambda x, y: relay.stack([x, y, x], axis=-1)),
    "joined_with_itself": Case((M,), lambda x: relay.concatenate([x, x * x], axis=0)),
    "concatenate": Case((M, (3, 2)), lambda x, y: relay.concatenate([x * x, y], axis=-1)),
    "subtract": Case((M, (3, 1)), relay.subtract),
    "exp_and_log": Case((M,), lambda x: relay.log(relay.exp(x) + relay.const(1.0, "float64"))),
    "sum_of_the_others": Case(((2, 3, 4),), lambda x: relay.sum(x * x, axis=1, exclude=True)),
    "max_of_axes": Case(((2, 3, 4),), lambda x: relay.max(x, axis=[0, -1], keepdims=True)),
    "squeeze": Case(((1, 3, 1, 2),), lambda x: relay.squeeze(relay.negative(x * x))),
    "cast": Case((M,), lambda x: relay.cast(relay.cast(x, "float64") * x, "float64")),
}
"""More forms of them, and what TVM has."""


def with_gradients(name: str, case: Case) -> tuple[list[relay.Var], list[relay.Expr]]:
    """The operands; a weighted sum of what the op makes of them, and its gradients."""
    operands = [var(f"{name}.{i}", shape, "float64") for i, shape in enumerate(case.shapes)]
    body = case.build(*operands)
    mapped: dict[relay.Expr, relay.Expr] = {operand: operand for operand in operands}
    name_calls(post_order(body), mapped)
    main = module(operands, mapped[body])["main"]
    shape = static_shape(main.body.checked_type)
    seed = const(np.random.default_rng(len(name)).standard_normal(shape), "float64")
    found = differentiate(main.body, seed, list(main.params))
    assert None not in found, name
    return list(main.params), [relay.sum(main.body * seed), *found]


def simplified_module(operands: list[relay.Var], outputs: list[relay.Expr]) -> tvm.IRModule:
    mod = module(operands, relay.Tuple(outputs))
    return relay.transform.InferType()(tvm.IRModule.from_expr(simplified(mod["main"])))


def random_operands(name: str, case: Case) -> dict[str, np.ndarray]:
    random = np.random.default_rng([1, len(name)])  # not as the gradient that comes from outside
    arrays = [random.standard_normal(shape) for shape in case.shapes]
    if case.is_positive:
        arrays = [np.abs(array) + 0.5 for array in arrays]
    return {f"{name}.{index}": array for index, array in enumerate(arrays)}


@pytest.mark.parametrize("name", [*OURS, *MORE])
def test_gradient_equals_finite_differences(name: str) -> None:
    case = (OURS | MORE)[name]
    operands, outputs = with_gradients(name, case)
    mod = simplified_module(operands, outputs)
    inputs = random_operands(name, case)
    _, *gradients = run_by_numpy(mod, inputs)
    measured, along = slopes(lambda arrays: run_by_numpy(mod, arrays), inputs, list(inputs), 0)
    pairs = zip(gradients, along.values(), strict=True)
    predicted = sum(float(np.sum(gradient * direction)) for gradient, direction in pairs)
    assert abs(predicted) > 1e-3
    assert measured == pytest.approx(predicted, rel=1e-7, abs=1e-8)


@pytest.mark.slow
def test_gradients_compiled_by_tvm_equal_those_by_numpy() -> None:
    variables, outputs, inputs = [], [], {}
    for name, case in (OURS | MORE).items():
        operands, found = with_gradients(name, case)
        variables += operands
        outputs += found
        inputs |= random_operands(name, case)
    mod = simplified_module(variables, outputs)  # in one library, which compiles sooner
    pairs = zip(stock_executor(mod)(inputs), run_by_numpy(mod, inputs), strict=True)
    for index, (compiled, expected) in enumerate(pairs):
        np.testing.assert_allclose(compiled, expected, rtol=1e-6, atol=1e-6, err_msg=str(index))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "size", "stride", "pad", "extent"),
    [
        ("max_pool2d", 5, 1, 2, 5),
        ("max_pool2d", 5, 1, 2, 6),
        ("max_pool2d", 3, 2, 1, 4),
        ("max_pool2d", 3, 1, 0, 5),
        ("avg_pool2d", 5, 1, 2, 4),
        ("avg_pool2d", 3, 2, 1, 4),
    ],
)
def test_gradients_of_pools_equal_finite_differences(
    pool: str, size: int, stride: int, pad: int, extent: int
) -> None:
    case = Case(
        ((1, 3, extent, extent),),
        lambda x: getattr(relay.nn, pool)(x, (size, size), (stride, stride), padding=(pad, pad)),
    )
    run = stock_executor(simplified_module(*with_gradients(pool, case)))
    inputs = random_operands(pool, case)
    measured, along = slopes(run, inputs, list(inputs), 0)
    predicted = float(np.sum(run(inputs)[1] * along[f"{pool}.0"]))
    assert measured == pytest.approx(predicted, rel=1e-6, abs=1e-8)


def test_all_gradients_of_ours_are_checked() -> None:
    ops = set()
    for case in OURS.values():
        operands = [var(f"x{i}", shape, "float64") for i, shape in enumerate(case.shapes)]
        for expr in post_order(case.build(*operands)):
            if isinstance(expr, relay.Call):
                ops.add(expr.op.name)
    assert ops >= {*MISSING, *REPLACED}


def test_slope_of_relu_is_0_at_0() -> None:
    x = var("x", (3,), "float64")
    main = module([x], relay.nn.relu(x))["main"]
    (gradient,) = differentiate(main.body, const([1, 1, 1], "float64"), list(main.params))
    mod = module(list(main.params), gradient)
    (found,) = run_by_numpy(mod, {"x": np.array([-1.0, 0, 2])})
    np.testing.assert_array_equal(found, [0, 0, 1])


def found_at(build: Callable[[relay.Var], relay.Expr], places: list[float]) -> np.ndarray:
    """The gradients of what is made of single numbers, by the numbers."""
    x = var("x", (len(places),), "float64")
    main = module([x], build(x))["main"]
    seed = relay.ones((len(places),), "float64")
    (gradient,) = differentiate(main.body, seed, list(main.params))
    assert gradient is not None
    mod = simplified_module(list(main.params), [gradient])
    with np.errstate(all="ignore"):  # of numbers that are not chosen
        (found,) = run_by_numpy(mod, {"x": np.array(places)})
    return found


def test_slope_of_abs_is_0_at_0() -> None:
    np.testing.assert_array_equal(found_at(relay.abs, [-2.0, 0, 3]), [-1, 0, 1])


def test_slope_of_power_0_is_0() -> None:
    """Where the base is 0 as well, for which the formula has no number."""
    one = found_at(lambda x: relay.power(x, relay.const(0.0, "float64")) + x, [-2.0, 0, 3])
    np.testing.assert_array_equal(one, [1, 1, 1])
    exponents = relay.const(np.array([0.0, 0, 1, 2]), "float64")
    np.testing.assert_array_equal(
        found_at(lambda x: relay.power(x, exponents), [2.0, 0, 0, 3]), [0, 0, 1, 6]
    )


def test_op_without_a_gradient_is_refused_by_name() -> None:
    x = var("x", (3,), "float64")
    main = module([x], relay.cumsum(x))["main"]
    with pytest.raises(UnsupportedRelayError, match="cumsum of '' has no gradient"):
        differentiate(main.body, const([1, 1, 1], "float64"), list(main.params))


def test_convolution_of_groups_is_refused() -> None:
    x, w = var("x", (1, 4, 3, 3), "float64"), var("w", (4, 2, 1, 1), "float64")
    conv = relay.nn.conv2d(x, w, groups=2, channels=4, kernel_size=(1, 1))
    main = module([x, w], conv)["main"]
    seed = relay.ones((1, 4, 3, 3), "float64")
    with pytest.raises(UnsupportedRelayError, match="conv2d of 2 groups has no gradient"):
        differentiate(main.body, seed, list(main.params))


@pytest.mark.parametrize(("size", "extent"), [(5, 4), (3, 2)])
def test_max_pool_whose_gradient_tvm_computes_wrongly_is_refused(size: int, extent: int) -> None:
    x = var("x", (1, 3, 8, extent), "float64")
    pad = size // 2
    main = module([x], relay.nn.max_pool2d(x, (size, size), padding=(pad, pad)))["main"]
    seed = relay.ones(static_shape(main.body.checked_type), "float64")
    with pytest.raises(UnsupportedRelayError, match=r"nn\.max_pool2d has no gradient here where"):
        differentiate(main.body, seed, list(main.params))


@pytest.mark.parametrize("pool", [relay.nn.avg_pool2d, relay.nn.max_pool2d])
def test_pool_of_windows_with_gaps_is_refused(pool: Build) -> None:
    x = var("x", (1, 3, 8, 8), "float64")
    main = module([x], pool(x, (2, 2), dilation=(2, 2)))["main"]
    seed = relay.ones(static_shape(main.body.checked_type), "float64")
    with pytest.raises(UnsupportedRelayError, match=r"no gradient here for windows of dilation"):
        differentiate(main.body, seed, list(main.params))


def test_gradient_of_a_mean_of_windows_does_not_read_them() -> None:
    x = var("x", (1, 3, 8, 8), "float64")
    main = module([x], relay.nn.global_avg_pool2d(relay.nn.avg_pool2d(x, (2, 2), (2, 2))))["main"]
    seed = relay.ones(static_shape(main.body.checked_type), "float64")
    (gradient,) = differentiate(main.body, seed, list(main.params))
    assert gradient is not None
    assert not relay.analysis.free_vars(gradient)


def test_values_without_a_gradient_are_not_followed() -> None:
    x, y = var("x", (3,), "float64"), var("y", (3,), "float64")
    body = x * relay.cast(relay.cumsum(relay.cast(y, "int32")), "float64")
    main = module([x, y], body)["main"]
    found = differentiate(main.body, const([1, 1, 1], "float64"), list(main.params))
    assert found[0] is not None
    assert found[1] is None


def test_gradients_are_in_the_registry_of_tvm() -> None:
    x = var("x", (3, 4), "float32")
    body = relay.sum(relay.split(relay.rsqrt(x), 2, axis=1)[0])
    mod = module([x], body)
    differentiate(mod["main"].body, relay.const(1.0), list(mod["main"].params))
    assert "concatenate" in str(relay.transform.FirstOrderGradient()(mod))
