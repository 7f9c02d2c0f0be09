"""wide_indices: loops and indices are of int64, and what kernels compute stays the same."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tvm
from relay_models import cpu_cluster, module, random_costs
from tvm import relay, tir

import heteroplace as hp
from heteroplace.tir.wide_indices import wide_indices

pytestmark = pytest.mark.relay


_PARAMETERS = 'x: T.Buffer(64, "float32"), k: T.Buffer(8, "int32"), y: T.Buffer(64, "float32")'
_NARROW = f"""
@T.prim_func
def main({_PARAMETERS}) -> None:
    for i in range(8):
        c: T.int32 = i * 8
        y[c : c + 8] = x[c : c + 8] + T.Cast("float32x8", T.Ramp(i, 1, 8))
        y[k[i]] = T.if_then_else(i >= 3, T.Cast("float32", i), T.Cast("float32", k[i] + i))
        if T.floordiv(i * 1000000000, 7) > i:
            y[i] = T.Cast("float32", T.min(i, 7))
"""
_WIDE = f"""
@T.prim_func
def main({_PARAMETERS}) -> None:
    for i in range(T.int64(8)):
        c: T.int64 = i * T.int64(8)
        y[c : c + T.int64(8)] = x[c : c + T.int64(8)] + T.Cast(
            "float32x8", T.Ramp(T.Cast("int32", i), 1, 8)
        )
        y[k[i]] = T.if_then_else(
            i >= T.int64(3),
            T.Cast("float32", T.Cast("int32", i)),
            T.Cast("float32", T.Cast("int32", T.Cast("int64", k[i]) + i)),
        )
        if T.Cast("int64", T.floordiv(T.Cast("int32", i * T.int64(1000000000)), 7)) > i:
            y[i] = T.Cast("float32", T.Cast("int32", T.min(i, T.int64(7))))
"""


def test_the_text_of_a_kernel() -> None:
    narrow, wide = (
        tvm.IRModule({"main": tvm.script.from_source(text)}) for text in (_NARROW, _WIDE)
    )
    tvm.ir.assert_structural_equal(wide_indices(narrow), wide)
    tvm.ir.assert_structural_equal(wide_indices(wide), wide)


def test_a_kernel_that_is_nested_too_deeply_stays_as_it_is() -> None:
    body = tvm.script.from_source(_NARROW).body
    for _ in range(sys.getrecursionlimit()):
        body = tir.IfThenElse(tir.const(True, "bool"), body, None)
    functions = tvm.IRModule({"main": tir.PrimFunc([], body)})
    assert wide_indices(functions).same_as(functions)


@pytest.mark.parametrize("step", [1, 3, 2**30, -(2**30)])
def test_sums_of_loop_variables_overflow_as_in_numpy(step: int) -> None:
    data = relay.var("data", relay.TensorType((64,), "int32"))
    count = relay.cast(relay.arange(relay.const(64), dtype="int32"), "int32")
    products = relay.multiply(count, relay.const(np.int32(step)))
    sums = relay.add(products, data)
    outputs = [
        relay.floor_divide(sums, relay.const(np.int32(7))),
        relay.less(sums, relay.const(np.int32(5))),
        relay.cast(sums, "int64"),
        relay.cast(products, "float32"),
    ]
    executable = hp.build(
        module([data], relay.Tuple(outputs)), cpu_cluster(), {}, costs=random_costs, solver="heft"
    )
    data = np.random.default_rng(0).integers(-(2**31), 2**31, 64).astype("int32")
    found = hp.Executor(executable).run(data=data)
    with np.errstate(over="ignore"):
        wrapped = np.arange(64, dtype="int32") * np.int32(step)
        total = wrapped + data
    expected = [total // 7, total < 5, total.astype("int64"), wrapped.astype("float32")]
    for mine, each in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, each)
