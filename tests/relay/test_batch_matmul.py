"""Products of matrices that are all computed, of any sizes, beside those of numpy."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from relay_models import TARGET, module, var
from tvm import relay, te, tir
from tvm.topi import nn

from heteroplace.parts.kernels.cpu import batch_matmul_op
from heteroplace.parts.kernels.cpu.batch_matmul_op import (
    BATCH_MATMUL_OP,
    batch_matmul,
    schedule_batch_matmul,
)
from heteroplace.parts.kernels.cpu.whole_vectors import whole_vectors
from heteroplace.parts.kernels.rewrites.unpacked import ReadWeightsInPlace
from heteroplace.relay.expressions import post_order, task_span
from heteroplace.relay.targets import STOCK_KERNELS
from tests.strategies import exact_cases

TARGETS = tuple(map(tvm.target.Target, (TARGET, "llvm -mcpu=haswell", "llvm")))
"""Of this machine; of vectors of 8 and of 4 elements, which every one can run."""


def lowered(
    a: np.ndarray,
    b: np.ndarray,
    transposes: tuple[bool, bool],
    is_fused: bool = False,
    target: tvm.target.Target = TARGETS[0],
) -> tvm.IRModule:
    """The op as a kernel, before vectors are stored whole; `is_fused`: a relu behind it."""
    attrs = dict(zip(("transpose_a", "transpose_b"), transposes, strict=True))
    tensors = [
        te.placeholder(each.shape, str(each.dtype), name) for each, name in ((a, "a"), (b, "b"))
    ]
    with target:
        (out,) = batch_matmul_op._compute(attrs, tensors, None)
        out = nn.relu(out) if is_fused else out
        schedule = schedule_batch_matmul(None, [out], target)
        return tvm.lower(schedule, [*tensors, out], name=BATCH_MATMUL_OP)


def product(
    a: np.ndarray,
    b: np.ndarray,
    transposes: tuple[bool, bool] = (False, True),
    is_fused: bool = False,
    target: tvm.target.Target = TARGETS[0],
) -> np.ndarray:
    """Of two arrays, by the op."""
    functions = whole_vectors(lowered(a, b, transposes, is_fused, target))
    kernel = tvm.build(functions, target=target)
    rows, columns = a.shape[2 if transposes[0] else 1], b.shape[1 if transposes[1] else 2]
    out = tvm.nd.empty((max(len(a), len(b)), rows, columns), str(a.dtype))
    kernel(tvm.nd.array(a), tvm.nd.array(b), out)
    return out.numpy()


@pytest.mark.costly(13)
@pytest.mark.costly
@given(
    batches=st.sampled_from([(1, 1), (3, 3), (3, 1), (1, 2)]),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 60), st.integers(1, 35)),
    transposes=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from(["float32", "float64"]),
    is_fused=st.booleans(),
    target=st.sampled_from(TARGETS),
)
@exact_cases(8)
def test_products_of_any_shape_are_those_of_numpy(
    batches: tuple[int, int],
    sizes: tuple[int, int, int],
    transposes: tuple[bool, bool],
    dtype: str,
    is_fused: bool,
    target: tvm.target.Target,
) -> None:
    random = np.random.default_rng(sum(sizes))
    rows, columns, depth = sizes
    a = random.standard_normal((batches[0], rows, depth))
    b = random.standard_normal((batches[1], depth, columns))
    left = np.ascontiguousarray(a.swapaxes(1, 2) if transposes[0] else a, dtype)
    right = np.ascontiguousarray(b.swapaxes(1, 2) if transposes[1] else b, dtype)
    found = product(left, right, transposes, is_fused, target)
    expected = np.maximum(a @ b, 0) if is_fused else a @ b
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))


@pytest.mark.costly
def test_a_row_is_the_same_in_products_of_any_number_of_rows() -> None:
    random = np.random.default_rng(0)
    a = random.standard_normal((2, 23, 40)).astype("float32")
    b = random.standard_normal((2, 19, 40)).astype("float32")
    np.testing.assert_array_equal(product(a[:, :7].copy(), b), product(a, b)[:, :7])


def test_only_the_last_vector_of_a_row_is_stored_by_elements() -> None:
    a, b = np.zeros((1, 4, 8), "float32"), np.zeros((1, 19, 8), "float32")
    before = lowered(a, b, (False, True))
    after = whole_vectors(before)
    assert _num_vector_stores(after) > _num_vector_stores(before)
    other = tvm.IRModule({"another_kernel": before[BATCH_MATMUL_OP]})
    assert whole_vectors(other).same_as(other)


def _num_vector_stores(functions: tvm.IRModule) -> int:
    found = []

    def visit(node: tvm.runtime.Object) -> None:
        if isinstance(node, tir.BufferStore) and "x" in str(node.value.dtype):
            found.append(node)

    tir.stmt_functor.post_order_visit(functions[BATCH_MATMUL_OP].body, visit)
    return len(found)


def ops_after(mod: tvm.IRModule, keys: str = "cpu") -> list[str]:
    step = ReadWeightsInPlace(tvm.target.Target(f"llvm -mcpu=haswell -keys={keys}"))
    made = tvm.transform.Sequential([step, relay.transform.InferType()])(mod)
    return [node.op.name for node in post_order(made["main"].body) if isinstance(node, relay.Call)]


def test_products_of_floats_are_tiled_unless_kernels_are_tvms() -> None:
    x, y = var("x", (2, 3, 4)), var("y", (2, 5, 4))
    mod = module([x, y], relay.nn.batch_matmul(x, y))
    assert ops_after(mod) == [BATCH_MATMUL_OP]
    assert ops_after(mod, f"{STOCK_KERNELS},cpu") == ["nn.batch_matmul"]
    x, y = var("x", (2, 3, 4), "int8"), var("y", (2, 5, 4), "int8")
    integers = module([x, y], relay.nn.batch_matmul(x, y, out_dtype="int32"))
    assert ops_after(integers) == ["nn.batch_matmul"]


@pytest.mark.parametrize("task", ["batch_matmul.1", "transpose.1"])
def test_a_transpose_is_taken_into_a_product_of_its_own_task(task: str) -> None:
    x, y = var("x", (2, 3, 4)), var("y", (2, 4, 5))

    def of_task(call: relay.Call, name: str) -> relay.Call:
        return relay.Call(call.op, call.args, call.attrs, None, task_span(name))

    turned = of_task(relay.transpose(y, [0, 2, 1]), task)
    mod = module([x, y], of_task(relay.nn.batch_matmul(x, turned), "batch_matmul.1"))
    kept = [] if task == "batch_matmul.1" else ["transpose"]
    assert ops_after(mod) == [*kept, BATCH_MATMUL_OP]


def test_the_type_is_that_of_tvms_op() -> None:
    with TARGETS[0]:
        call = batch_matmul(
            var("x", (1, 4, 3)), var("y", (2, 5, 4)), transpose_a=True, transpose_b=True
        )
    made = relay.transform.InferType()(tvm.IRModule.from_expr(call))["main"].body
    assert [int(extent) for extent in made.checked_type.shape] == [2, 3, 5]
