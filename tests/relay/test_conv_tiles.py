"""Convolutions by our schedule: the sums of numpy, whatever divides their sizes."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain
from random import Random

import numpy as np
import pytest
import tvm
from numpy_relay import run_by_numpy
from own_kernels import AVX2, check_near, check_schedules, lowered_for_avx2
from relay_models import cpu_cluster, module, random_costs, random_inputs, var, weights
from tvm import relay

import heteroplace as hp
from heteroplace.lower.in_place import may_run_in_place
from heteroplace.lower.library import generate_code
from heteroplace.parts.kernels.cpu.conv_tiles import conv_tile, order_in_tile
from heteroplace.parts.kernels.cpu.product_tiles import vector_registers

pytestmark = pytest.mark.relay


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("divides", [True, False])
def test_tiles_divide_the_result_and_stay_in_registers(registers: int, divides: bool) -> None:
    random = Random(0)
    for _ in range(500):
        blocks, height, width = (random.randint(1, 64) for _ in range(3))
        tile = conv_tile(blocks, height, width, registers, divides=divides)
        assert not blocks % tile.blocks and not height % tile.rows
        assert not (divides and width % tile.columns)
        # With what the inner axes read, and one at a time of the other. With 32 registers elements
        # of one block are read in the products.
        places = tile.rows * tile.columns
        held = tile.blocks if order_in_tile(tile, registers, 0, (1, 2))[-1] == 0 else places
        held = min(held, places) if tile.blocks > 1 else 1
        assert tile.sums + held + (registers == 16 or held > 1) <= registers


@pytest.mark.parametrize(
    ("target", "registers"),
    [
        ("llvm -mcpu=skylake-avx512", 32),
        ("llvm -mcpu=core-avx2", 16),
        ("llvm -mtriple=x86_64-linux-gnu", 16),
        ("llvm -mtriple=aarch64-linux-gnu -mattr=+neon", 32),
    ],
)
def test_registers_are_those_of_the_target(target: str, registers: int) -> None:
    with tvm.target.Target(target):
        assert vector_registers() == registers


def _random_convolutions(random: Random) -> tuple[tvm.IRModule, dict[str, np.ndarray]]:
    """Some of one input, of odd sizes, each with other ops behind it or none."""
    channels, height = random.choice((3, 8, 16, 32)), random.choice((7, 40, 48))
    width = random.choice((5, 8, 13, 14, 29))
    x = var("x", (random.randint(1, 2), channels, height, width))
    results = []
    for index in range(3):
        kernel, num_out = random.choice((1, 2, 3)), random.choice((16, 32, 48, 20))
        value = relay.nn.conv2d(
            x,
            weights(num_out, channels, kernel, kernel, seed=index),
            channels=num_out,
            kernel_size=(kernel, kernel),
            strides=(random.choice((1, 2)),) * 2,
            padding=tuple(random.randint(0, 1) for _ in range(4)) if kernel > 1 else (0, 0),
        )
        if random.random() < 0.7:
            value = relay.nn.relu(relay.add(value, weights(num_out, 1, 1, seed=index)))
        results.append(value)
    mod = relay.transform.InferType()(module([x], relay.Tuple(results)))
    return mod, random_inputs(mod)


@pytest.mark.costly
@pytest.mark.parametrize("seed", range(3))
def test_sums_are_those_of_numpy_and_the_same_in_every_run(seed: int) -> None:
    mod, inputs = _random_convolutions(Random(seed))
    check_schedules(mod, inputs)


def _added_to(blocks: int, width: int) -> tuple[relay.Var, relay.Expr]:
    """The sum of a convolution of 1 x 1 of the input, and of a second one of another one."""
    channels = 8 * blocks
    x = var("x", (1, channels, 4, width))

    def convolution(data: relay.Expr, seed: int) -> relay.Expr:
        filters = weights(channels, channels, 1, 1, seed=seed)
        return relay.nn.conv2d(data, filters, channels=channels, kernel_size=(1, 1))

    before, other = (relay.nn.relu(convolution(x, seed)) for seed in range(2))
    return x, relay.nn.relu(relay.add(convolution(other, 2), before))


def test_the_last_tile_of_a_row_may_be_smaller() -> None:
    blocks, width = 8, 13
    assert width % conv_tile(blocks, 4, width, 16, divides=False).columns
    x, body = _added_to(blocks, width)
    mod = relay.transform.InferType()(module([x], body))
    inputs = random_inputs(mod)
    (expected,) = run_by_numpy(mod, {name: each.astype(float) for name, each in inputs.items()})
    cluster = cpu_cluster()
    devices = tuple(replace(each, target=AVX2) for each in cluster.devices)
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(
            mod, replace(cluster, devices=devices), costs=random_costs, solver="heft"
        )
    (actual,) = hp.Executor(executable).run(**inputs)
    check_near(actual, expected)


@pytest.mark.parametrize("blocks", [2, 3, 4, 5])
@pytest.mark.parametrize("width", [8, 13, 14])
def test_sums_of_a_tile_are_in_registers_of_avx2(blocks: int, width: int) -> None:
    """No innermost loop with products has a vector on the stack, or a second branch."""
    x, body = _added_to(blocks, width)
    kernels = [each for each in lowered_for_avx2(body, x) if "conv2d" in each.symbol]
    assert len(kernels) == 2  # of three convolutions, two have the same kernel
    for kernel in kernels:
        loops = _loops_of_products(generate_code([kernel]).get_source("asm"))
        assert loops
        assert not [line for line in chain(*loops) if "ymm" in line and "rsp" in line]
        assert all(len(re.findall(r"\tj\w+", "\n".join(loop))) == 1 for loop in loops)


def _loops_of_products(assembly: str) -> list[list[str]]:
    """The lines of innermost loops that multiply."""
    lines = assembly.splitlines()
    labels = {line.split(":")[0]: n for n, line in enumerate(lines) if re.match(r"\.L\w+:", line)}
    loops = []
    for end, line in enumerate(lines):
        jump = re.match(r"\tj\w+\t(\.L\w+)", line)
        start = labels.get(jump[1], end) if jump else end
        loop = lines[start : end + 1]
        is_innermost = not any(re.match(r"\.LBB\w+:", each) for each in loop[1:])
        if start < end and is_innermost and any("vfmadd" in each for each in loop):
            loops.append(loop)
    return loops


@pytest.mark.parametrize("width", [8, 13])
def test_a_sum_may_be_where_the_tensor_is_that_it_is_added_to(width: int) -> None:
    x, body = _added_to(4, width)
    (kernel,) = (each for each in lowered_for_avx2(body, x) if "add" in each.symbol)
    assert [may_run_in_place(kernel, place, 0) for place in range(3)].count(True) == 1
