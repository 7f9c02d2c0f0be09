"""ranges: intervals of values are never too small, and inputs are legal for what reads them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from relay_models import cpu_cluster, module, var
from tvm import relay

import heteroplace
from heteroplace.errors import ExecutionError, SolverError
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.kernels import Value
from heteroplace.measure.example_inputs import made_up, read_examples
from heteroplace.measure.measure_options import ProfileOptions
from heteroplace.measure.profile import profile_network
from heteroplace.pipeline import prepare
from heteroplace.relay.ranges.bounds import value_bounds
from heteroplace.relay.ranges.drawn import array_in
from heteroplace.relay.ranges.interval import BOOLEAN, FlagRows, Interval
from heteroplace.relay.ranges.legal import legal_inputs
from heteroplace.relay.tasks.fold import fold_constants
from tests.corpus import corpus
from tests.strategies import exact_cases

pytestmark = pytest.mark.relay

SIZE = (2, 3)


def ints(name: str, *shape: int) -> relay.Var:
    return var(name, shape or SIZE, "int64")


def number(value: int) -> relay.Constant:
    return relay.const(value, "int64")


def legal_ends(body: relay.Expr) -> dict[str, tuple[float, float]]:
    """By input what it should be in."""
    function = module(relay.analysis.free_vars(body), body)["main"]
    legal = legal_inputs(function)
    return {parameter.name_hint: (each.low, each.high) for parameter, each in legal.items()}


X, Y, Z, TABLE = ints("x"), ints("y"), ints("z"), relay.const(np.ones((10, 4), "float32"))
WRAPPED = relay.where(relay.less(X, number(0)), relay.add(X, number(10)), X)
LEGAL: dict[str, tuple[relay.Expr, dict[str, tuple[float, float]]]] = {
    "a divisor": (relay.floor_divide(X, Y), {"x": (0, 1), "y": (1, 7)}),
    "a modulus": (relay.floor_mod(X, Y), {"x": (0, 1), "y": (1, 7)}),
    "a difference": (
        relay.divide(X, relay.subtract(Y, Z)),
        {"x": (0, 1), "y": (4, 7), "z": (0, 3)},
    ),
    "a sum": (relay.divide(X, relay.add(Y, Z)), {"x": (0, 1), "y": (1, 4), "z": (0, 3)}),
    "a product": (relay.divide(X, relay.multiply(Y, number(2))), {"x": (0, 1), "y": (1, 3)}),
    "a float": (relay.divide(X, relay.cast(var("f", SIZE), "int64")), {"f": (1, 7), "x": (0, 1)}),
    "an index": (relay.take(TABLE, X, axis=0, mode="fast"), {"x": (0, 9)}),
    "an index from behind": (relay.take(TABLE, WRAPPED, axis=0, mode="fast"), {"x": (0, 9)}),
    "vectors of indices": (relay.gather_nd(TABLE, ints("i", 2, 5)), {"i": (0, 3)}),
    "a category": (
        relay.one_hot(X, relay.const(1.0), relay.const(0.0), 6, -1, "float32"),
        {"x": (0, 5)},
    ),
    "lengths": (
        relay.reverse_sequence(var("d", (4, 3)), ints("n", 3), seq_axis=0, batch_axis=1),
        {"n": (0, 4)},
    ),
    "a position": (relay.divide(relay.argmax(X, axis=1), relay.const(2)), {"x": (0, 1)}),
    "a mask": (relay.cast(X, "float32"), {"x": (0, 1)}),
}


@pytest.mark.parametrize("case", LEGAL)
def test_inputs_are_legal_for_the_ops_that_read_them(case: str) -> None:
    body, expected = LEGAL[case]
    assert legal_ends(body) == expected


def test_rows_of_flags_have_so_many_ones() -> None:
    rows = FlagRows(0, 1, 2)
    assert rows.meet(BOOLEAN) == rows
    mask = array_in(rows, (50, 4), "int32", np.random.default_rng(0))
    assert mask.dtype == "int32"
    assert (mask.sum(axis=1) == 2).all()
    assert (mask.sum(axis=0) > 0).all()


BINARY: list[Callable[..., relay.Expr]] = [
    *(relay.add, relay.subtract, relay.multiply, relay.maximum, relay.minimum),
    *(relay.floor_divide, relay.floor_mod, relay.divide, relay.mod),
]
UNARY: list[Callable[[relay.Expr], relay.Expr]] = [
    relay.negative,
    relay.abs,
    lambda x: relay.cast(relay.clip(relay.cast(x, "float32"), -2, 5), "int64"),
    lambda x: relay.sum(x, axis=[1], keepdims=True),
    lambda x: relay.max(x, axis=[0], keepdims=True),
    lambda x: relay.where(relay.less(x, number(0)), relay.negative(x), x),
    lambda x: relay.cast(relay.floor(relay.cast(x, "float32")), "int64"),
    lambda x: relay.reverse(x, axis=0),
]


@corpus
def integer_functions(random: Random) -> relay.Function:
    """A function of integers that returns all its values; some are divided by."""
    values: list[relay.Expr] = [ints("x"), ints("y"), relay.const(np.array([[1], [-4]]), "int64")]
    for _ in range(random.randint(1, 6)):
        if random.random() < 0.6:
            values.append(random.choice(BINARY)(random.choice(values), random.choice(values)))
        else:
            values.append(random.choice(UNARY)(random.choice(values)))
    return relay.Function(relay.analysis.free_vars(relay.Tuple(values)), relay.Tuple(values))


@given(integer_functions())
@exact_cases(20)
def test_values_are_within_their_intervals(
    function: relay.Function,
) -> None:
    typed = relay.transform.InferType()(tvm.IRModule.from_expr(function))["main"]
    legal = legal_inputs(typed)
    random = np.random.default_rng(0)
    arrays = {
        parameter: made_up(Value(SIZE, "int64", range=legal[parameter]), random)
        for parameter in typed.params
    }
    for parameter, array in arrays.items():
        assert array.min() >= legal[parameter].low
        assert array.max() <= legal[parameter].high
    constants = {parameter: relay.const(array, "int64") for parameter, array in arrays.items()}
    bound = relay.Function([], relay.bind(typed.body, constants))
    folded = fold_constants(tvm.IRModule.from_expr(bound))["main"].body
    bounds = value_bounds(typed, legal)
    for expr, field in zip(typed.body.fields, folded.fields, strict=True):
        found = field.data.numpy()
        assert bounds[expr][0].low <= found.min(), expr
        assert found.max() <= bounds[expr][0].high, expr


F, BYTE = var("f", SIZE), relay.var("b", shape=(3, 2), dtype="int8")
INDEX = relay.minimum(relay.maximum(X, number(0)), number(3))
POSITIONS = relay.cast(INDEX, "float32")
"""Whole numbers from 0 to 3."""
ALL = (-math.inf, math.inf)
LONGS, SHORTS = (-(2**63), 2**63 - 1), (-128, 127)
ONES, ROW = relay.const(np.ones((1, 3)), "int64"), relay.const(np.ones(3), "int64")
PLACES = relay.const(np.zeros((2, 3)), "int64")


def parts(*values: float) -> relay.Constant:
    return relay.const(np.array(values, "float32"))


ENDS: dict[str, tuple[relay.Expr, tuple[float, float]]] = {
    "an index": (INDEX, (0, 3)),
    "a float that was whole": (relay.cast(POSITIONS, "int32"), (0, 3)),
    "a clip that keeps NaN": (relay.cast(relay.clip(F, 0, 3), "int64"), LONGS),
    "a NaN that stays": (relay.cast(relay.sigmoid(relay.nn.relu(F)), "int64"), LONGS),
    "a comparison with a NaN": (relay.less(relay.clip(F, 0, 3), parts(9)), (0, 1)),
    "infinity times 0": (relay.cast(parts(1, np.inf) * parts(0), "int64"), LONGS),
    "a product that is infinite": (parts(0, 3e38) * parts(0, 10), ALL),
    "a rounded sum": (relay.cast(INDEX, "float32") + parts(2**24), (2**24, 2**24 + 4)),
    "halves": (relay.round(parts(0.5, 2.5)), (0, 3)),
    "halves below 0": (relay.round(parts(-2.5)), (-3, -2)),
    "a clip by parts of integers": (relay.clip(BYTE, 0.5, 3.7), (0, 3)),
    "a clip whose limits are not in order": (relay.clip(BYTE, 5, 2), (5, 5)),
    "a mean that wraps around": (relay.mean(relay.clip(BYTE, 100, 101), axis=0), SHORTS),
    "a mean": (relay.mean(relay.clip(BYTE, 3, 7), axis=0), (3, 7)),
    "a place": (relay.argmax(F, axis=1), (0, 2)),
    "a quotient of long numbers": (
        relay.floor_divide(relay.const(2**60 + 1, "int64"), number(1)),
        (2**60 + 1, 2**60 + 1),
    ),
    "a remainder of floats": (relay.floor_mod(POSITIONS, parts(2)), ALL),
    "a sum without the last": (relay.cumsum(relay.clip(BYTE, 1, 2), 0, exclusive=True), (0, 6)),
    "a sum of what is cut": (relay.cumsum(parts(0.5, 0.9), 0, "int32"), (-(2**31), 2**31 - 1)),
    "what is written": (relay.scatter_elements(INDEX, ONES, ONES, 0, "update"), (0, 3)),
    "the larger of what is written": (relay.scatter_nd(INDEX, PLACES, ROW, "max"), (0, 3)),
    "what is added": (relay.scatter_elements(INDEX, ONES, ONES, 0, "add"), LONGS),
    "what is multiplied": (relay.scatter_nd(INDEX, PLACES, ROW, "mul"), LONGS),
    "blocks that are not full": (
        relay.layout_transform(relay.clip(BYTE, 3, 7), "NC", "NC4c"),
        (0, 7),
    ),
    "places in bytes": (
        relay.topk(relay.const(np.zeros(300, "float32")), k=300, dtype="int8")[1],
        SHORTS,
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_no_interval_is_too_small(case: str) -> None:
    body, expected = ENDS[case]
    main = module(relay.analysis.free_vars(body), body)["main"]
    (found,) = value_bounds(main, {})[main.body]
    assert (found.low, found.high) == expected


def divided(divisor: relay.Expr) -> tvm.IRModule:
    body = relay.floor_divide(X, divisor)
    return module(relay.analysis.free_vars(body), body)


PARITY = relay.floor_mod(Y, number(2))
ODD = {"y": np.full(SIZE, 3)}
"""An input for which it is not 0."""


def profiled(mod: tvm.IRModule, is_in_place: bool, **examples: Any) -> int:
    """Measure on one core; return the number of kernels."""
    cluster = cpu_cluster()
    with tvm.transform.PassContext(opt_level=3):
        network = prepare(mod).with_examples(examples)
        options = ProfileOptions(is_in_place=is_in_place, least_rounds=1, round_ns=1)
        return profile_network(CompiledNetwork.of(network), cluster, options).num_kernels


@pytest.mark.parametrize("is_in_place", [True, False])
def test_integer_division_by_an_input_is_measured(is_in_place: bool) -> None:
    assert profiled(divided(Y), is_in_place) == 1


@pytest.mark.parametrize("examples", [{}, ODD])
def test_division_by_what_may_be_0_is_measured(examples: dict[str, Any]) -> None:
    assert profiled(divided(PARITY), True, **examples) == 1


def test_examples_in_any_order_of_memory_and_of_bytes_are_measured() -> None:
    turned = np.asfortranarray(np.full(SIZE, 3, ">i8"))
    assert profiled(divided(PARITY), True, **read_examples({"y": turned})) == 1


def test_example_inputs_of_another_shape_are_refused() -> None:
    with pytest.raises(ExecutionError, match=r"'y' is int64\[3\], the model takes int64\[2, 3\]"):
        prepare(divided(Y)).with_examples({"y": np.ones(3, "int64"), "q": np.ones(1)})


def test_example_inputs_are_read_from_a_file_of_numpy(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.arange(3))
    assert read_examples(tmp_path / "x.npz")["x"].tolist() == [0, 1, 2]
    (tmp_path / "y.npz").write_text("no arrays")
    np.save(tmp_path / "z.npy", np.arange(3))
    for name in ("y.npz", "z.npy", "none.npz"):
        with pytest.raises(ExecutionError, match=name):
            read_examples(tmp_path / name)


def test_build_measures_with_the_given_inputs() -> None:
    mod = divided(PARITY)
    with tvm.transform.PassContext(opt_level=3):
        executable = heteroplace.build(mod, cpu_cluster(), costs="isolated", inputs=ODD)
    assert executable.solution.plan.steps


def test_inputs_without_anything_measured_are_refused() -> None:
    with pytest.raises(SolverError, match="costs='estimate' measures nothing"):
        heteroplace.HeteroPlace(cpu_cluster(), costs="estimate", inputs=ODD)


@pytest.mark.parametrize(
    ("interval", "shape", "expected"),
    [(Interval(0, 512), (1,), 256), (Interval(-3, 4.5), (), 0), (Interval(0, 512), (2,), None)],
)
def test_a_whole_number_that_is_alone_is_the_middle(
    interval: Interval, shape: tuple[int, ...], expected: int | None
) -> None:
    arrays = [
        made_up(Value(shape, "int32", range=interval), np.random.default_rng(seed))
        for seed in range(20)
    ]
    assert all(interval.contains(int(each.min())) for each in arrays)
    assert len({each.tobytes() for each in arrays}) == (1 if expected is not None else 20)
    if expected is not None:
        assert arrays[0].tolist() == np.full(shape, expected).tolist()


def test_flags_that_are_alone_are_random() -> None:
    value = Value((1,), "int32", range=BOOLEAN)
    assert {int(made_up(value, np.random.default_rng(seed))[0]) for seed in range(20)} == {0, 1}
