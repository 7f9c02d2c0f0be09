"""Random chains of ONNX nodes: the numbers of onnxruntime, through import, placement and run."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from random_onnx import Chain
from random_onnx_arithmetic import ARITHMETIC
from random_onnx_movement import MOVEMENT
from random_onnx_windows import MAPS

from heteroplace import HeteroPlace, build
from heteroplace.bench.conformance.worker import turn_by_turn, two_memories
from heteroplace.errors import FrontendError
from heteroplace.relay.frontend.importer import from_onnx
from heteroplace.run.executor import Executor

pytestmark = pytest.mark.relay

OPS = (*ARITHMETIC, *MAPS, *MOVEMENT)
NUM_BATCHES, BATCH_SIZE = 20, 10
MANY = 1_000
_TOLERANCE = 1e-4
"""Of the largest, beside what a change of the inputs by their rounding makes."""
_ROUNDING = 1e-6
_REFUSED = "does not fit in"
"""Of a window that is larger than its map, which onnxruntime may round into it."""

Arrays = list[np.ndarray]


def chain_of(number: int) -> Chain:
    """Chain `number`, of one to eight ops."""
    random = Random(f"onnx {number}")
    return Chain(random, OPS, random.randint(1, 8))


def reference(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> Arrays | None:
    """What onnxruntime makes of it, node by node; None where it has no kernel."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return session.run(None, inputs)  # type: ignore[no-any-return]
    except Exception:  # it has no common base of its errors
        return None


def ours(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> Arrays | None:
    """What we make of it, tasks in turn on two devices; None where it is refused as it should."""
    try:
        imported = from_onnx(model)
        with tvm.transform.PassContext(opt_level=3):
            place = HeteroPlace(
                two_memories(),
                params=imported.params,
                costs=turn_by_turn,
                solver="heft",
                verify="off",
            )
            executor = Executor(build(place(imported.mod)))
    except FrontendError as err:
        if _REFUSED in str(err):
            return None
        raise
    return executor.run(inputs)


def fault(actual: np.ndarray, expected: np.ndarray, nearby: np.ndarray) -> str:
    """How two results differ, by more than the rounding of inputs changes the second one."""
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return f"{actual.dtype}{actual.shape} instead of {expected.dtype}{expected.shape}"
    if not np.isfinite(expected).all() or not np.isfinite(nearby).all():
        return ""
    allowed = _TOLERANCE * max(float(np.abs(expected).max()), 1e-3)
    allowed += 10 * float(np.abs(nearby - expected).max())
    difference = float(np.abs(actual - expected).max())
    return "" if difference <= allowed else f"{difference} off, {allowed} allowed"


def check(chain: Chain) -> str:
    """Run a chain; return what is wrong with its numbers, or why it says nothing."""
    model, inputs = chain.model(), chain.inputs()
    expected = reference(model, inputs)
    if expected is None:
        return "no reference"
    nearby = reference(model, {name: x * (1 + _ROUNDING) for name, x in inputs.items()})
    made = ours(model, inputs)
    if made is None:
        return "refused"
    assert nearby is not None
    found = fault(made[0], expected[0], nearby[0])
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
