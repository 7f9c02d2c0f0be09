"""Softmax of rows on vectors: that of numpy, of rows of any length, and the same in every run."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relay_models import TARGET, module, var
from tvm import relay
from tvm.contrib import graph_executor

from heteroplace.parts.kernels.cpu.own_schedules import register_schedules
from heteroplace.parts.kernels.cpu.softmax_rows import can_be_on_vectors
from heteroplace.relay.targets import kernel_target

pytestmark = pytest.mark.relay
SHAPES = ((3, 2, 16), (2, 5, 1, 49), (1, 197), (4, 128))


def built(body: relay.Expr, parameters: list[relay.Var]) -> graph_executor.GraphModule:
    register_schedules()
    with tvm.transform.PassContext(opt_level=3):
        target = kernel_target(tvm.target.Target(TARGET))
        library = relay.build(module(parameters, body), target=target)
    return graph_executor.GraphModule(library["default"](tvm.cpu()))


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x.astype("float64") - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_rows_that_fill_a_vector_are_made_on_vectors() -> None:
    with tvm.target.Target("llvm -mcpu=haswell"):
        assert can_be_on_vectors((2, 8), "float32", -1)
        assert can_be_on_vectors((2, 9), "float32", 1)
        assert not can_be_on_vectors((2, 7), "float32", 1)
        assert not can_be_on_vectors((9, 8), "float32", 0)
        assert not can_be_on_vectors((2, 8), "float64", 1)


@pytest.mark.costly
def test_rows_of_any_length_are_those_of_numpy_and_the_same_in_every_run() -> None:
    parameters = [var(f"x{index}", shape) for index, shape in enumerate(SHAPES)]
    plain = [relay.nn.softmax(each) for each in parameters]
    running = built(relay.Tuple([*plain, relay.exp(plain[1])]), parameters)
    random = np.random.default_rng(0)
    inputs = [(40 * random.standard_normal(shape)).astype("float32") for shape in SHAPES]
    inputs[1][0, 1, 0, 7] = np.nan
    inputs[2][0, 100:] = -np.inf
    expected = [softmax(each) for each in inputs]
    named = {f"x{index}": each for index, each in enumerate(inputs)}
    for index, each in enumerate([*expected, np.exp(expected[1])]):
        running.run(**named)
        found = running.get_output(index).numpy()
        np.testing.assert_allclose(found, each, rtol=0, atol=1e-6)
        running.run(**named)
        assert running.get_output(index).numpy().tobytes() == found.tobytes()
