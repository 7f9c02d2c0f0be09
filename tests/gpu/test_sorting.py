"""Networks that sort, over a core and a GPU: sorting stays on the core (`kernel_rules.py`)."""

from __future__ import annotations

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
from tvm import relay  # noqa: E402

import heteroplace as hp  # noqa: E402
from tests.gpu.test_end_to_end import cpu_and_gpu  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.mark.parametrize("size", [31, 4097])
def test_what_a_gpu_computes_is_sorted_on_a_core(size: int) -> None:
    if not tvm.cuda(0).exist:
        pytest.skip("needs an NVIDIA GPU")
    data = relay.var("x", shape=(3, size))
    doubled = relay.multiply(data, relay.const(2.0))
    highest = relay.topk(doubled, k=5, axis=1, ret_type="both", dtype="int32")
    results = [
        relay.sort(doubled, axis=1),
        relay.argsort(doubled, axis=1, dtype="int32"),
        highest[0],
        highest[1],
    ]
    mod = tvm.IRModule.from_expr(relay.Function([data], relay.Tuple(results)))
    options = {"pin": {"multiply": "gpu0"}, "costs": "measure", "store": "off"}
    executable = hp.build(relay.transform.HeteroPlace(cpu_and_gpu(), **options)(mod))
    assert executable.solution.devices_used == ("cpu.0", "gpu0")

    # Distinct numbers, so that there is one right order.
    random = np.random.default_rng(size)
    x = np.stack([random.permutation(size) for _ in range(3)]).astype("float32")
    found = hp.Executor(executable).run(x=x)
    order, falling = np.argsort(x, axis=1), np.argsort(-x, axis=1)[:, :5]
    for got, expected in zip(
        found, [np.sort(2 * x), order, 2 * np.take_along_axis(x, falling, 1), falling], strict=True
    ):
        np.testing.assert_array_equal(got, expected)
