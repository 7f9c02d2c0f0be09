"""Programs that fail and values that do not fit: who is named, who is released, what survives."""

from __future__ import annotations

import os

import executor_programs as programs
import numpy as np
import pytest
import tvm
from executor_programs import EXTENT, make_executor, needs_two_cores, vector, write_program

from heteroplace.errors import ExecutionError
from heteroplace.native.execute import Executor

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(EXTENT), r"'x0': expected float32 \(256\), got float64 \(256\)"),
        (np.zeros((EXTENT, 1), "float32"), r"expected float32 \(256\), got float32 \(256, 1\)"),
    ],
)
def test_wrong_input_is_refused(library: str, array: np.ndarray, message: str) -> None:
    executor = make_executor(library, write_program(("cpu",), []))
    with pytest.raises(ExecutionError, match=message):
        executor.set_input("x0", array)


def test_strided_input_is_a_type_error(library: str) -> None:
    executor = make_executor(library, write_program(("cpu",), []))
    with pytest.raises(TypeError):
        executor.set_input("x0", np.zeros(2 * EXTENT, "float32")[::2])


def test_unknown_names_list_the_known_ones(library: str) -> None:
    executor = make_executor(library, write_program(("cpu",), [], num_inputs=2))
    with pytest.raises(ExecutionError, match="no input 'z'; it has 'x0', 'x1'"):
        executor.set_input("z", vector(0))
    with pytest.raises(ExecutionError, match="no output 'z'; it has none"):
        executor.get_output("z")


def test_input_without_a_value_is_named(library: str) -> None:
    executor = make_executor(library, write_program(("cpu",), [], num_inputs=2))
    executor.set_input("x1", vector(0))
    with pytest.raises(ExecutionError, match="inputs without a value: 'x0'"):
        executor.run()


def test_output_before_any_run_is_refused(library: str) -> None:
    executor = make_executor(library, write_program(("cpu",), ["copy 0 0 8 0 -"], outputs=(0,)))
    with pytest.raises(ExecutionError, match="no run has succeeded"):
        executor.get_output("y0")


def test_out_of_another_shape_is_refused(library: str) -> None:
    executor = make_executor(library, write_program(("cpu",), ["copy 0 0 8 0 -"], outputs=(0,)))
    executor.set_input("x0", vector(0))
    executor.run()
    with pytest.raises(ExecutionError, match=r"`out` is float32 \(3\), expected float32 \(256\)"):
        executor.get_output("y0", np.zeros(3, "float32"))


@pytest.mark.parametrize("queues", [("cpu",), ("fake:0",)])
def test_failing_kernel_is_named_and_the_executor_survives(
    library: str, queues: tuple[str, ...]
) -> None:
    # Step 5 gives `add` two arguments instead of three.
    text = write_program(queues, ["call 0 4 1 1 8,0 -", "call 0 5 0 1 8,0 -"], outputs=(0,))
    executor = make_executor(library, text)
    executor.set_input("x0", vector(0))
    where = "step 5 failed on queue 'q0'.*kernel 'add'"
    if queues[0] != "cpu":  # no event lies between the two
        where = r"one of steps 4 \(kernel 'twice'\) to 5 \(kernel 'add'\) of queue 'q0'"
    for _ in range(3):
        with pytest.raises(ExecutionError, match=where + ".*num_args should be 3"):
            executor.run()
        with pytest.raises(ExecutionError, match="no run has succeeded"):
            executor.get_output("y0")


@pytest.mark.parametrize("is_recorded", [False, True])
def test_failure_of_a_stream_lies_after_the_last_event_that_it_reached(
    library: str, is_recorded: bool
) -> None:
    # Step 7 is done; 8 fails, late; 9 is not run. What is awaited, or recorded, has an event.
    calls = [
        "call 0 7 1 1 8,0 -",
        "call 0 8 0 1 8,0 -",
        "copy 0 9 0 1 -",
        f"copy 1 10 0 2 {'-' if is_recorded else '0:1'}",
    ]
    executor = make_executor(library, write_program(("fake:0", "fake:0"), calls, outputs=(2,)))
    executor.set_input("x0", vector(0))
    if is_recorded:
        executor.start_trace()
    where = r"steps 8 \(kernel 'add'\) to 9 \(a copy\) of queue 'q0'"
    for _ in range(3):
        with pytest.raises(ExecutionError, match=where + ": .*num_args should be 3"):
            executor.run()


def test_failing_kernel_in_memory_is_named(module: tvm.runtime.Module) -> None:
    text = write_program(("cpu",), ["call 0 5 0 1 8,0 -"])
    executor = Executor(programs.libtvm_path(), "", text, module_handle=module.handle.value)
    executor.set_input("x0", vector(0))
    with pytest.raises(ExecutionError, match=r"step 5 .*'add': .*num_args should be 3$"):
        executor.run()


@pytest.mark.parametrize("queues", [("cpu", "cpu"), ("cpu", "fake:1000"), ("fake:0", "cpu")])
def test_failure_releases_all_waiting_queues(library: str, queues: tuple[str, ...]) -> None:
    if queues == ("cpu", "cpu") and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two workers need two cores")
    calls = ["call 0 0 0 1 8,0 -", "call 0 1 1 1 8,1 -", "call 1 2 1 1 1,2 0:2"]
    calls += ["call 0 3 0 1 2,1,3 1:1"]
    text = write_program(queues, calls).replace("fake 1 0 0 0", "fake 1 0 0 -")
    if queues[0] != "cpu":
        text = text.replace("q1 cpu 1 0 0 1", "q1 cpu 1 0 0 0")
    executor = make_executor(library, text)
    executor.set_input("x0", vector(0))
    for _ in range(20):
        with pytest.raises(ExecutionError, match=r"queue 'q0'.*num_args"):
            executor.run()


def test_state_of_a_run_that_failed_has_to_be_given_again(library: str) -> None:
    # The state is replaced in place before step 2 fails: to run on it would be a wrong number.
    calls = ["call 0 0 1 1 8,0 -", "copy 0 1 0 8 -", "call 0 2 0 1 8,0 -"]
    text = write_program(("cpu",), calls).replace("input x0 8", "input x0 8\noutput x0 8")
    executor = make_executor(library, text)
    request = executor.begin()
    assert request is not None
    with request:
        for _ in range(2):
            request.set_input("x0", vector(0))
            request.submit()
            with pytest.raises(ExecutionError, match="step 2 failed"):
                request.finish()
            with pytest.raises(ExecutionError, match="inputs without a value: 'x0'"):
                request.submit()
            with pytest.raises(ExecutionError, match="output 'x0' has no value"):
                request.get_output("x0")
        request.set_input("x0", vector(0))
        request.submit()
        request.wait()
    with pytest.raises(ExecutionError, match="inputs without a value: 'x0'"):
        executor.benchmark(1)


@needs_two_cores
def test_failure_of_a_leader_releases_its_joiner(library: str) -> None:
    calls = ["call 0 0 0 2 8,0 -", "join 1 0 0 0 -", "call 1 1 1 1 0,1 0:1"]
    executor = make_executor(library, write_program(("cpu", "cpu"), calls))
    executor.set_input("x0", vector(0))
    for _ in range(20):
        with pytest.raises(ExecutionError, match="step 0 failed"):
            executor.run()
