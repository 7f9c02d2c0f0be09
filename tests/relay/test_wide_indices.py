"""wide_indices: loops and indices are of int64, and what kernels compute stays the same."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tvm
from tvm import tir

from heteroplace.tir.cpu_loops import wide_indices

pytestmark = pytest.mark.relay


_PARAMETERS = """
x: T.Buffer(64, "float32"), k: T.Buffer(8, "int32"),
y: T.Buffer(64, "float32"), z: T.Buffer(64, "int64")
"""
_NARROW = f"""
@T.prim_func
def main({_PARAMETERS}) -> None:
    for i in range(8):
        c: T.int32 = i * 8
        y[c : c + 8] = x[c : c + 8] + T.Cast("float32x8", T.Ramp(i, 1, 8))
        z[c : c + 8] = T.Cast("int64x8", T.Ramp(i * 1000000000, 1, 8))
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
        z[c : c + T.int64(8)] = T.Cast(
            "int64x8", T.Ramp(T.Cast("int32", i) * 1000000000, 1, 8)
        )
        y[k[i]] = T.if_then_else(
            i >= T.int64(3),
            T.Cast("float32", T.Cast("int32", i)),
            T.Cast("float32", k[i] + T.Cast("int32", i)),
        )
        if T.Cast("int64", T.floordiv(T.Cast("int32", i) * 1000000000, 7)) > i:
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


@pytest.mark.parametrize("step", [1, -3, 2**24])
def test_what_is_computed_from_loop_variables(step: int) -> None:
    function = tvm.script.from_source(f"""
@T.prim_func
def main(
    k: T.Buffer(64, "int32"),
    quotients: T.Buffer(64, "int32"),
    small: T.Buffer(64, "bool"),
    sums: T.Buffer(64, "int64"),
    floats: T.Buffer(64, "float32"),
    products: T.Buffer(64, "int64"),
) -> None:
    T.func_attr({{"global_symbol": "main", "tir.noalias": T.bool(True)}})
    for i in range(64):
        quotients[i] = T.floordiv(k[i] + i * {step}, 7)
        small[k[63 - i]] = i * {step} < 5
        sums[i] = T.Cast("int64", k[i] + i * {step})
        floats[i] = T.Cast("float32", i * {step})
        products[i] = T.Cast("int64", T.max(i * {step}, 9))
""")
    k = np.random.default_rng(0).permutation(64).astype("int32")
    products = np.arange(64) * step
    small = np.zeros(64, "bool")
    small[k[::-1]] = products < 5
    expected = [
        *(((k + products) // 7).astype("int32"), small, k + products),
        *(products.astype("float32"), np.maximum(products, 9)),
    ]
    outputs = [tvm.nd.array(np.zeros_like(each)) for each in expected]
    kernel = tvm.build(wide_indices(tvm.IRModule({"main": function})), target="llvm")
    kernel(tvm.nd.array(k), *outputs)
    for output, each in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(output.numpy(), each)
