"""Sorting on a GPU against numpy: TVM's kernels meet in branches that not all threads take.

CUDA leaves open what `__syncthreads` does there. A GPU on which this fails sorts wrongly, whatever
the executor does; the tests say so before a model does.
"""

from __future__ import annotations

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
from tvm import relay  # noqa: E402

from heteroplace.tvm_bridge import register_cuda_compiler  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

SIZES = [1, 2, 31, 64, 1000, 1024, 4097, 30_000]
"""Below and above what one block sorts, powers of two and their neighbours."""


def on_gpu(body: relay.Expr, x: np.ndarray) -> list[np.ndarray]:
    """What stock TVM computes on cuda:0."""
    if not tvm.cuda(0).exist:
        pytest.skip("needs an NVIDIA GPU")
    register_cuda_compiler()
    arch = "sm_" + tvm.cuda(0).compute_version.replace(".", "")
    mod = tvm.IRModule.from_expr(body)
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(mod, target=f"cuda -arch={arch}")
    module = tvm.contrib.graph_executor.GraphModule(library["default"](tvm.cuda(0)))
    module.set_input("x", x)
    module.run()
    return [module.get_output(index).numpy() for index in range(module.get_num_outputs())]


def values(rows: int, size: int) -> np.ndarray:
    """Distinct numbers in any order, so that there is one right order."""
    random = np.random.default_rng(size)
    order = np.stack([random.permutation(size) for _ in range(rows)])
    return (order - size / 2).astype("float32")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_ascend", [True, False])
def test_sort_and_argsort(size: int, is_ascend: bool) -> None:
    x = values(3, size)
    data = relay.var("x", shape=x.shape)
    both = relay.Tuple(
        [
            relay.sort(data, axis=1, is_ascend=is_ascend),
            relay.argsort(data, axis=1, is_ascend=is_ascend, dtype="int32"),
        ]
    )
    sorted_, order = on_gpu(both, x)
    expected = np.argsort(x if is_ascend else -x, axis=1)
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_array_equal(sorted_, np.take_along_axis(x, expected, axis=1))


@pytest.mark.parametrize("size", SIZES)
def test_topk(size: int) -> None:
    x = values(2, size)
    k = min(size, 5)
    data = relay.var("x", shape=x.shape)
    found = on_gpu(relay.topk(data, k=k, axis=1, ret_type="both", dtype="int32").astuple(), x)
    expected = np.argsort(-x, axis=1)[:, :k]
    np.testing.assert_array_equal(found[1], expected)
    np.testing.assert_array_equal(found[0], np.take_along_axis(x, expected, axis=1))
