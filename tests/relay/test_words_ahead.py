"""Prefetches of words: one for each vector that is read, and no other change."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tir

from heteroplace.parts.kernels.cpu.words_ahead import words_ahead

pytestmark = pytest.mark.relay

LANES = 16


def kernel(dtype: str, vectors: int = 2) -> tuple[tvm.IRModule, str]:
    """A kernel that adds up the bytes of words, each of which it reads twice."""
    words = te.placeholder((64, vectors * LANES), dtype, "words")

    def value(y: tir.Var, x: tir.Var) -> tir.PrimExpr:
        word = words[y, x].astype("uint32")
        low = word & tir.const(255, "uint32")
        return (low + (word >> tir.const(8, "uint32"))).astype("int32")

    result = te.compute(words.shape, value, "result")
    schedule = te.create_schedule(result.op)
    outer, lane = schedule[result].split(result.op.axis[1], LANES)
    schedule[result].unroll(outer)
    schedule[result].vectorize(lane)
    return tvm.lower(schedule, [words, result], name="f"), dtype


def num_prefetches(functions: tvm.IRModule) -> int:
    calls: list[tir.Call] = []

    def visit(node: object) -> None:
        if isinstance(node, tir.Call) and getattr(node.op, "name", "") == "tir.prefetch":
            calls.append(node)

    tir.stmt_functor.post_order_visit(functions["f"].body, visit)
    return len(calls)


def test_each_vector_is_asked_for_once_and_nothing_else_changes() -> None:
    functions, dtype = kernel("uint32")
    after = words_ahead(functions)
    assert num_prefetches(after) == 2
    words = np.random.default_rng(0).integers(0, 2**32, (64, 2 * LANES)).astype(dtype)
    results = []
    for each in (functions, after):
        result = tvm.nd.array(np.zeros(words.shape, "int32"))
        tvm.build(each, target="llvm")(tvm.nd.array(words), result)
        results.append(result.numpy())
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(results[1].view("uint32"), (words & 255) + (words >> 8))


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_other_vectors_are_not_asked_for(dtype: str) -> None:
    functions, _ = kernel(dtype)
    assert words_ahead(functions).same_as(functions)
