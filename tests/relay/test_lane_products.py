"""Lane by lane products of 8 bits by one instruction: the code, and numbers that nothing rounds."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from heteroplace.parts.kernels.cpu.lane_products import LANES, lane_products
from heteroplace.relay.legalize import multiplies_integers
from heteroplace.tvm_bridge import llvm_cpu_target

pytestmark = pytest.mark.relay

WITH_VNNI = "llvm -mcpu=cascadelake"
TERMS = 300
"""The products that are added to each sum."""


def kernel(target: str, lanes: int = LANES) -> tvm.runtime.Module:
    """Sums over TERMS of data[k, lane] * weights[k, lane] for 2 * LANES lanes."""
    data, weights = (
        te.placeholder((TERMS, 2 * LANES), dtype, name)
        for dtype, name in (("uint8", "data"), ("int8", "weights"))
    )
    k = te.reduce_axis((0, TERMS), "k")
    sums = te.compute(
        (2 * LANES,),
        lambda i: te.sum(data[k, i].astype("int32") * weights[k, i].astype("int32"), axis=k),
        name="sums",
    )
    schedule = te.create_schedule(sums.op)
    outer, lane = schedule[sums].split(sums.op.axis[0], lanes)
    # An axis of one, over which the intrinsic sums up nothing, stays beside the lanes.
    many, once = schedule[sums].split(k, 1)
    schedule[sums].reorder(outer, many, lane, once)
    schedule[sums].tensorize(lane, lane_products())
    return tvm.build(schedule, [data, weights, sums], target)


def test_a_vector_of_products_is_one_instruction() -> None:
    code = kernel(WITH_VNNI).get_source("asm")
    assert "vpdpwssd" in code and "vpdpwssds" not in code  # which saturates
    assert "vpmulld" not in code


def test_another_number_of_lanes_is_refused() -> None:
    with pytest.raises(tvm.TVMError, match=r"argument sums.shape\[0\]"):
        kernel(WITH_VNNI, LANES // 2)


@pytest.mark.parametrize("largest", ["random", "positive", "negative"])
def test_sums_are_exact_up_to_the_largest_products(largest: str) -> None:
    target = llvm_cpu_target()
    if not multiplies_integers(tvm.target.Target(target)):
        pytest.skip("this CPU has no VNNI")
    random = np.random.default_rng(3)
    data = random.integers(0, 256, (TERMS, 2 * LANES)).astype("uint8")
    weights = random.integers(-128, 128, (TERMS, 2 * LANES)).astype("int8")
    if largest != "random":
        data[:], weights[:] = 255, 127 if largest == "positive" else -128
    found = tvm.nd.array(np.full(2 * LANES, 7, "int32"))
    kernel(target)(tvm.nd.array(data), tvm.nd.array(weights), found)
    expected = (data.astype("int32") * weights.astype("int32")).sum(axis=0)
    np.testing.assert_array_equal(found.numpy(), expected)
