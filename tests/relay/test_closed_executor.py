"""`with` and `close`: an executor gives up what it holds, and says so to whoever calls it later."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from relay_models import (
    cpu_cluster,
    fire_modules,
    random_inputs,
    written_randomly,
)

import heteroplace
from heteroplace.errors import ExecutionError
from heteroplace.lower.executable import Executable


@pytest.fixture(scope="module")
def executable() -> Executable:
    return written_randomly(fire_modules(), cpu_cluster(), 1)


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray]:
    return random_inputs(fire_modules())


def num_threads() -> int:
    """Return how many threads this process has, those of the core included."""
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.costly(5)
def test_a_block_closes_the_executor_of_a_file(
    executable: Executable, inputs: dict[str, np.ndarray], tmp_path: Path
) -> None:
    path = tmp_path / "net.so"
    executable.export_library(path)
    before = num_threads()
    with heteroplace.load(path) as executor:
        assert isinstance(executor, heteroplace.Executor)
        assert not executor.is_closed
        (output,) = executor.run(inputs)
        assert num_threads() > before
    assert executor.is_closed
    assert num_threads() <= before  # threads of earlier tests may have ended
    assert output.size  # what a call returned is the caller's
    assert not [
        line for line in Path("/proc/self/maps").read_text().splitlines() if path.name in line
    ]


@pytest.mark.parametrize(
    "use",
    [
        lambda executor, inputs: executor.run(inputs),
        lambda executor, inputs: executor.run_async(inputs),
        lambda executor, inputs: list(executor.run_many([inputs])),
        lambda executor, inputs: executor.set_input(*next(iter(inputs.items()))),
        lambda executor, inputs: executor.get_output(0),
        lambda executor, inputs: executor.benchmark(1),
        lambda executor, inputs: executor.timeline(1),
        lambda executor, inputs: executor.trace().start(),
        lambda executor, inputs: executor.report("page.html"),
        lambda executor, inputs: executor.memory(),
        lambda executor, inputs: executor.max_in_flight,
        lambda executor, inputs: executor.is_helping,
        lambda executor, inputs: executor.prediction_counts(),
    ],
)
def test_use_after_close_is_an_error(
    use: Callable[..., Any], executable: Executable, inputs: dict[str, np.ndarray]
) -> None:
    executor = heteroplace.Executor(executable)
    executor.close()
    executor.close()
    with pytest.raises(ExecutionError, match="the executor is closed; load the file again"):
        use(executor, inputs)


def test_plan_and_ports_stay_readable(executable: Executable) -> None:
    with heteroplace.Executor(executable) as executor:
        ports = executor.inputs, executor.outputs
    assert (executor.inputs, executor.outputs) == ports
    assert executor.solution == executable.solution
    assert executor.predicted_memory == executable.memory


def test_calls_at_work_end_as_usual(executable: Executable, inputs: dict[str, np.ndarray]) -> None:
    with heteroplace.Executor(executable) as executor:
        (expected,) = executor.run(inputs)
    executor = heteroplace.Executor(executable, max_in_flight=3)
    futures = [executor.run_async(inputs) for _ in range(3)]
    executor.close()
    for future in futures:
        np.testing.assert_array_equal(future.result()[0], expected)


def test_a_closed_executor_of_calls_at_work_ends_its_threads(
    executable: Executable, inputs: dict[str, np.ndarray]
) -> None:
    before = num_threads()
    executor = heteroplace.Executor(executable, max_in_flight=2)
    future = executor.run_async(inputs)
    executor.close()
    future.result()
    end = time.monotonic() + 10
    while num_threads() > before and time.monotonic() < end:  # that of futures lingers a moment
        gc.collect()
        time.sleep(0.02)
    assert num_threads() <= before


def test_a_block_that_fails_closes_too(executable: Executable) -> None:
    with pytest.raises(ZeroDivisionError), heteroplace.Executor(executable) as executor:
        raise ZeroDivisionError
    assert executor.is_closed


def test_executables_and_executors_are_one_line_and_a_page(executable: Executable) -> None:
    solution = repr(executable.solution)
    assert repr(executable) == solution.replace("<Solution", "<Executable")
    with heteroplace.Executor(executable) as executor:
        assert repr(executor) == solution.replace("<Solution", "<Executor")
        pages = executor._repr_html_(), executable._repr_html_()
    for page in pages:
        for text in ("<svg", "input", "output", "1x", "float32", *executable.solution.devices_used):
            assert text in page
    head, _, rest = repr(executor).partition(", ")
    assert head.startswith("<Executor: ") and rest.startswith("closed, ")
    assert len(repr(executor)) <= 120
