"""Adapting: one thread does calls alone where that is faster; outputs are the same to the bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from relay_models import (
    cores,
    fire_modules,
    random_inputs,
    stock_outputs,
    two_cores,
    written_randomly,
)

import heteroplace as hp
from heteroplace.errors import ExecutionError

pytestmark = [
    pytest.mark.relay,
    pytest.mark.skipif(len(cores()) < 2, reason="two workers need two cores"),
]

MOST_CALLS = 100_000
"""Many more than fit before the first trial."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network with its tasks on two cores at random."""
    path = tmp_path_factory.mktemp("adaptation") / "model.so"
    written_randomly(fire_modules(), two_cores(), seed=0).export_library(path)
    return path


@pytest.mark.costly
@pytest.mark.parametrize("timeout_s", [None, 600.0])
def test_outputs_of_serial_calls_equal_stock_tvm_to_the_bit(file, timeout_s) -> None:
    inputs = random_inputs(fire_modules())
    (expected,) = stock_outputs(fire_modules(), inputs)
    with hp.load(file) as executor:
        for _ in range(MOST_CALLS):
            (output,) = executor.run(inputs, timeout_s=timeout_s)
            np.testing.assert_array_equal(output, expected)
            if executor.call_modes.num_serial > 3:
                break
        assert executor.call_modes.num_serial > 3
        # What is measured runs as planned, in between.
        assert len(executor.benchmark(5)) == 5
        np.testing.assert_array_equal(executor.run(inputs, timeout_s=timeout_s)[0], expected)


@pytest.mark.costly
def test_a_trace_tells_which_calls_were_serial(file) -> None:
    inputs = random_inputs(fire_modules())
    with hp.load(file) as executor:
        for _ in range(MOST_CALLS):
            before = executor.call_modes.num_serial
            with executor.trace() as trace:
                for _ in range(20):
                    executor.run(inputs)
            num_serial = executor.call_modes.num_serial - before
            assert sum(request.is_serial for request in trace.requests) == num_serial
            if num_serial:
                break
        assert num_serial


@pytest.mark.costly
def test_calls_at_once_are_tried_by_one_thread_each(file) -> None:
    several = [random_inputs(fire_modules(), seed=seed) for seed in range(3)]
    expected = [stock_outputs(fire_modules(), inputs)[0] for inputs in several]
    with hp.load(file, max_in_flight=3) as executor:
        calls = executor.run_many(several[n % 3] for n in range(MOST_CALLS))
        for n, (output,) in enumerate(calls):
            np.testing.assert_array_equal(output, expected[n % 3])
            if executor.call_modes.num_serial > 20:
                break
        assert executor.call_modes.num_serial > 20


@pytest.mark.costly
def test_executors_that_are_called_at_once_run_each_call_by_one_thread(file) -> None:
    inputs = random_inputs(fire_modules())
    (expected,) = stock_outputs(fire_modules(), inputs)
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        executors = [stack.enter_context(hp.load(file)) for _ in range(2)]

        def are_serial() -> bool:
            return all(executor.call_modes.num_serial > 20 for executor in executors)

        def call(executor: hp.Executor) -> None:
            for _ in range(10_000):  # how soon calls meet depends on the machine
                np.testing.assert_array_equal(executor.run(inputs)[0], expected)
                if are_serial():
                    return

        list(pool.map(call, executors))
        assert are_serial()


@pytest.mark.costly
@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_calls_run_as_planned_where_nothing_may_adapt(file, max_in_flight) -> None:
    inputs = random_inputs(fire_modules())
    with hp.load(file, adapt=False, max_in_flight=max_in_flight) as executor:
        for outputs in executor.run_many(inputs for _ in range(1000)):
            assert outputs
        assert executor.call_modes == (False, 0, 0)


def test_adapt_must_be_true_or_false() -> None:
    with pytest.raises(ExecutionError, match="adapt"):
        hp.load("model.so", adapt=1)
