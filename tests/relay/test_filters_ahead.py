"""Convolutions ask memory for filters that they read next: which ones, and of whom nothing."""

from __future__ import annotations

from itertools import product

import pytest
import tvm
from own_kernels import check_by_all_kernels
from relay_models import module, random_inputs, var, weights
from tvm import relay, te, tir, topi

from heteroplace.parts.kernels.cpu.conv_tiles import schedule_conv
from heteroplace.parts.kernels.cpu.filters_ahead import ask_for_filters

pytestmark = pytest.mark.relay
TARGET = tvm.target.Target("llvm -mcpu=skylake-avx512")
LANES = 16
BLOCK = "conv2d_NCHWc"


def lowered(num_in: int, num_out: int, size: int, kernel: int, batch: int = 1) -> tvm.IRModule:
    """A convolution in blocks of channels."""
    blocks, results = num_in // LANES, num_out // LANES
    with TARGET:
        data = te.placeholder((batch, blocks, size, size, LANES), "float32", "data")
        filters = te.placeholder((results, blocks, kernel, kernel, LANES, LANES), name="filters")
        layout, padding = f"NCHW{LANES}c", (kernel // 2,) * 4
        made = topi.x86.conv2d_NCHWc(
            data, filters, (1, 1), padding, (1, 1), layout, layout, "float32"
        )
        made = topi.nn.relu(made)
        return tvm.lower(schedule_conv(made), [data, filters, made], name=BLOCK)


def prefetches(functions: tvm.IRModule) -> tuple[list[tir.PrimExpr], dict[tir.Var, int]]:
    """Where they begin in the filters, and the loops of the function."""
    places, loops = [], {}

    def visit(node: tvm.runtime.Object) -> None:
        if isinstance(node, tir.For):
            loops[node.loop_var] = int(node.extent)
        if isinstance(node, tir.Call) and node.op.name == "tir.prefetch":
            (index,) = node.args[0].args[0].indices
            places.append(index)

    tir.stmt_functor.post_order_visit(functions[BLOCK].body, visit)
    return places, loops


@pytest.mark.parametrize(
    ("batch", "num_in", "size", "kernel", "rows"),
    [
        *((1, 256, 14, 1, 14), (2, 256, 14, 1, 14), (1, 64, 7, 3, 7), (2, 64, 7, 3, 7)),
        (1, 256, 16, 1, 8),  # each core makes half of the map
    ],
)
def test_tiles_ask_for_all_filters_of_the_next_blocks(
    batch: int, num_in: int, size: int, kernel: int, rows: int
) -> None:
    functions = lowered(num_in, 512, size, kernel, batch)
    asking = ask_for_filters(functions)
    places, loops = prefetches(asking)
    used = {each: loops[each] for each in tir.analysis.undefined_vars(tvm.tir.Add(*places[:2]))}
    fused = next(each for each in used if "fused" in each.name)
    of_blocks = 2 * LANES * num_in * kernel**2  # two blocks of channels are summed up at once
    used[fused] = rows  # of the first two blocks
    asked = set()
    for values in product(*(range(extent) for extent in used.values())):
        here = dict(zip(used, values, strict=True))
        for place in places:
            found = tvm.arith.Analyzer().simplify(tir.stmt_functor.substitute(place, here))
            asked.add(int(found))
    assert asked.issuperset(range(of_blocks, 2 * of_blocks, LANES))
    assert min(asked) == of_blocks
    assert len(asked) <= 2 * of_blocks / LANES


@pytest.mark.parametrize("shape", [(64, 64, 14, 1), (256, 512, 56, 1)])
def test_nothing_is_asked_of_small_filters_or_for_large_maps(
    shape: tuple[int, int, int, int],
) -> None:
    functions = lowered(*shape)
    assert ask_for_filters(functions).same_as(functions)


@pytest.mark.costly
def test_sums_are_those_of_numpy() -> None:
    x = var("x", (1, 128, 7, 7))
    result = relay.nn.relu(x)
    for size in (1, 3, 5):
        filters = weights(128, 128, size, size)
        about = {"channels": 128, "kernel_size": (size, size), "padding": (size // 2,) * 2}
        result = relay.nn.relu(relay.nn.conv2d(result, filters, **about))
    mod = relay.transform.InferType()(module([x], result))
    check_by_all_kernels(mod, random_inputs(mod))
