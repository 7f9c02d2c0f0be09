"""Random chains of ONNX nodes: the numbers of onnxruntime, through import, placement and run."""

from __future__ import annotations

from random import Random

import onnx
import pytest
from random_onnx import Chain
from random_onnx_arithmetic import ARITHMETIC
from random_onnx_movement import MOVEMENT
from random_onnx_runs import fault, nearby, ours, reference
from random_onnx_windows import MAPS

pytestmark = pytest.mark.relay

OPS = (*ARITHMETIC, *MAPS, *MOVEMENT)
NUM_BATCHES, BATCH_SIZE = 20, 10
MANY = 1_000


def chain_of(number: int) -> Chain:
    """Chain `number`, of one to eight ops."""
    random = Random(f"onnx {number}")
    return Chain(random, OPS, random.randint(1, 8))


def check(chain: Chain) -> str:
    """Run a chain; return what is wrong with its numbers, or why it says nothing."""
    model, inputs = chain.model(), chain.inputs()
    expected = reference(model, inputs)
    if expected is None:
        return "no reference"
    rounded = reference(model, nearby(inputs))
    made = ours(model, inputs)
    if made is None:
        return "refused"
    assert rounded is not None
    found = fault(made[0], expected[0], rounded[0])
    assert not found, f"{found}\n{onnx.printer.to_text(model)}"
    return ""


def check_batch(numbers: range) -> None:
    said = [check(chain_of(number)) for number in numbers]
    assert said.count("") > len(said) // 2, said


@pytest.mark.costly(25)
@pytest.mark.parametrize("batch", range(NUM_BATCHES))
def test_chains_have_the_numbers_of_onnxruntime(batch: int) -> None:
    check_batch(range(batch * BATCH_SIZE, (batch + 1) * BATCH_SIZE))


@pytest.mark.slow
def test_many_chains_have_the_numbers_of_onnxruntime() -> None:
    check_batch(range(NUM_BATCHES * BATCH_SIZE, MANY))
