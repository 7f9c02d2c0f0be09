"""Convolutions by our schedule: the sums of numpy, whatever divides their sizes."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import tvm
from own_kernels import check_schedules
from relay_models import module, random_inputs, var, weights
from tvm import relay

from heteroplace.parts.kernels.cpu.conv_tiles import conv_tile
from heteroplace.parts.kernels.cpu.product_tiles import vector_registers

pytestmark = pytest.mark.relay


@pytest.mark.parametrize("registers", [16, 32])
def test_tiles_divide_the_result_and_stay_in_registers(registers: int) -> None:
    random = Random(0)
    for _ in range(500):
        blocks, height, width = (random.randint(1, 64) for _ in range(3))
        tile = conv_tile(blocks, height, width, registers)
        assert not blocks % tile.blocks and not height % tile.rows and not width % tile.columns
        # With elements of the map, or filters, and one at a time of the other. With 32 registers
        # elements of one block are read in the products.
        held = sorted((tile.blocks, tile.rows * tile.columns))
        assert tile.sums + held[0] + (registers == 16 or held[0] > 1) <= registers


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
    channels, height, width = random.choice((3, 8, 16, 32)), random.choice((7, 40, 48)), 0
    width = random.choice((5, 8, 14))
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
