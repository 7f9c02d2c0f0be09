"""safe_integers: no division or shift of integers is undefined, and none ends the process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from relay_models import cpu_cluster, module, random_costs, var
from tvm import relay, tir

import heteroplace as hp
from heteroplace.tir.safe_integers import define_integers

pytestmark = pytest.mark.relay

_DIVIDE = {
    "divide": (relay.divide, lambda a, b: np.trunc(a / np.where(b, b, 1))),
    "floor_divide": (relay.floor_divide, np.floor_divide),
    "trunc_divide": (relay.trunc_divide, lambda a, b: np.trunc(a / np.where(b, b, 1))),
    "mod": (relay.mod, np.fmod),
    "floor_mod": (relay.floor_mod, np.mod),
    "trunc_mod": (relay.trunc_mod, np.fmod),
    "left_shift": (relay.left_shift, np.left_shift),
    "right_shift": (relay.right_shift, np.right_shift),
}


def run(inputs: dict[str, np.ndarray], body: relay.Expr) -> list[np.ndarray]:
    """Build a function for one core and run it."""
    mod = module(relay.analysis.free_vars(body), body)
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(mod, cpu_cluster(), {}, costs=random_costs, solver="heft")
    return hp.Executor(executable).run(**inputs)


@pytest.mark.costly
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32"])
def test_any_operands_give_what_numpy_gives(dtype: str) -> None:
    limits = np.iinfo(dtype)
    bits = limits.bits
    left = np.array([0, 1, 7, limits.max, limits.min, limits.min + 1], dtype)
    right = np.array([0, 1, 3, bits - 1, bits, limits.max], dtype)
    if limits.min:
        right = np.concatenate([right, np.array([-1, -3, limits.min], dtype)])
    a, b = (each.reshape(-1).copy() for each in np.meshgrid(left, right))
    x, y = (var(name, a.shape, dtype) for name in "ab")
    ops = {name: each for name, each in _DIVIDE.items() if bits < 64 or "div" not in name}
    found = run({"a": a, "b": b}, relay.Tuple([op(x, y) for op, _ in ops.values()]))
    with np.errstate(all="ignore"):
        for mine, (name, (_, expected)) in zip(found, ops.items(), strict=True):
            if "div" in name:
                exact = expected(a.astype("int64"), b.astype("int64"))
                wanted = np.where(b == 0, 0, exact).astype("int64").astype(dtype)
            else:
                wanted = np.where((b == 0) & (name.endswith("mod")), 0, expected(a, b))
            np.testing.assert_array_equal(mine, wanted.astype(dtype), err_msg=name)


def test_the_quotient_of_long_integers() -> None:
    a = np.array([5, -(2**63), -(2**63), -7], dtype="int64")
    b = np.array([0, -1, 0, 2], dtype="int64")
    x, y = (var(name, a.shape, "int64") for name in "ab")
    found = run({"a": a, "b": b}, relay.Tuple([relay.divide(x, y), relay.floor_divide(x, y)]))
    assert found[0].tolist() == [0, -(2**63), 0, -3]
    assert found[1].tolist() == [0, -(2**63), 0, -4]


def _numbers(dtype: str) -> np.ndarray:
    limits = np.iinfo(dtype)
    ends = [
        limits.min,
        limits.min + 1,
        limits.min // 3,
        limits.max // 3,
        limits.max - 9,
        limits.max,
    ]
    return np.array([*ends, *range(-21, 21)], dtype)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_floored_division_of_sums_does_not_overflow(dtype: str) -> None:
    """TVM adds a multiple of the divisor to x + 8, whose least value it believes to know."""
    numbers = _numbers(dtype)
    names = iter("abcdefgh")
    bodies, expected, inputs = [], [], {}
    for divisor in (16, 10, -7):
        for op, of_numpy in ((relay.floor_mod, np.mod), (relay.floor_divide, np.floor_divide)):
            name = next(names)
            x, eight, by = (var(name, numbers.shape, dtype), *_constants(8, divisor, dtype=dtype))
            bodies.append(op(x + eight, by) - eight)
            inputs[name] = numbers
            with np.errstate(over="ignore"):
                sums = numbers + np.array(8, dtype)
                expected.append(of_numpy(sums, np.array(divisor, dtype)) - np.array(8, dtype))
    for actual, wanted in zip(run(inputs, relay.Tuple(bodies)), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_floored_division_by_data_of_one_sign_does_not_overflow() -> None:
    numbers = _numbers("int32")
    divisors = np.resize(np.arange(-2, 9, dtype="int32"), numbers.shape)
    bodies, expected, inputs = [], [], {}
    for i, (op, of_numpy) in enumerate(
        [(relay.floor_mod, np.mod), (relay.floor_divide, np.floor_divide)]
    ):
        x, y = var(f"x{i}", numbers.shape, "int32"), var(f"y{i}", numbers.shape, "int32")
        one, eight = _constants(1, 8, dtype="int32")
        bodies.append(op(x + eight, relay.maximum(y, one)))
        inputs |= {f"x{i}": numbers, f"y{i}": divisors}
        with np.errstate(over="ignore"):
            expected.append(of_numpy(numbers + np.int32(8), np.maximum(divisors, np.int32(1))))
    for actual, wanted in zip(run(inputs, relay.Tuple(bodies)), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


def _constants(*values: int, dtype: str) -> list[relay.Constant]:
    return [relay.const(value, dtype) for value in values]


def _lowered(build: Callable[[tir.PrimExpr], tir.PrimExpr], dtype: str = "int32") -> str:
    """The text of one store, after the rewrite."""
    x, index = tir.decl_buffer((8,), dtype, "x"), tir.Var("i", "int32")
    body = tir.For(index, 0, 8, 0, tir.BufferStore(x, build(x[index]), [index]))
    functions = tvm.IRModule({"f": tir.PrimFunc([x], body)})
    result = define_integers(functions)
    return "" if result.same_as(functions) else str(result["f"].body)


def test_what_is_defined_stays_as_it_is() -> None:
    one, seven = tir.IntImm("int32", 1), tir.IntImm("int32", 7)
    assert not _lowered(lambda x: tir.truncdiv(x, seven))
    assert not _lowered(lambda x: tir.truncdiv(x, tir.max(x, one)))
    assert not _lowered(lambda x: tir.floordiv(tir.max(x, one), seven))
    assert not _lowered(lambda x: tir.floordiv(tir.Var("i", "int32"), seven))
    assert "remainder" in _lowered(lambda x: tir.floordiv(x, seven))
    assert not _lowered(lambda x: x >> tir.IntImm("int32", 31))
    assert not _lowered(lambda x: tir.Div(x, x + tir.FloatImm("float32", 1.0)), "float32")
    assert "T.Let" in _lowered(lambda x: tir.Div(tir.IntImm("int32", 7), x))
    assert "T.Let" in _lowered(lambda x: x >> x)
