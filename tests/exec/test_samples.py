"""Measuring by the executor: one kernel alone, hot and cold, and processor times in place."""

from __future__ import annotations

import numpy as np
import pytest
from executor_programs import make_executor, needs_two_cores, vector, write_program

from heteroplace.errors import ExecutionError
from heteroplace.native.execute import Executor

ONE = ["call 0 3 1 1 8,0 -"]
BOTH = ["call 0 3 1 2 8,0 -", "join 1 3 0 0 -"]


def executor_of(library: str, calls: list[str], queues: tuple[str, ...] = ("cpu",)) -> Executor:
    executor = make_executor(library, write_program(queues, calls, outputs=(0,)))
    executor.set_input("x0", vector(0))
    return executor


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_kernel_is_sampled(library: str, is_cold: bool) -> None:
    executor = executor_of(library, ONE)
    walls, cpus = executor.sample(7, 5, is_cold)
    assert walls.shape == cpus.shape == (7,)
    assert (walls > 0).all()
    assert (cpus > 0).all()
    executor.run()
    np.testing.assert_array_equal(executor.get_output("y0"), 2 * vector(0) + 1)


def test_a_sample_of_more_calls_takes_longer(library: str) -> None:
    executor = executor_of(library, ONE)
    few, _ = executor.sample(15, 10)
    many, _ = executor.sample(15, 10_000)
    assert many.min() > few.min()


@needs_two_cores
@pytest.mark.parametrize("is_cold", [False, True])
def test_a_kernel_of_two_cores_is_sampled(library: str, is_cold: bool) -> None:
    executor = executor_of(library, BOTH, ("cpu", "cpu"))
    walls, cpus = executor.sample(5, 20, is_cold)
    assert (walls > 0).all()
    assert (cpus > 0).all()
    executor.run()
    np.testing.assert_array_equal(executor.get_output("y0"), 2 * vector(0) + 1)


def test_a_kernel_of_an_asynchronous_queue_is_sampled_while_warm(library: str) -> None:
    delay_ns = 200_000
    executor = executor_of(library, ONE, (f"fake:{delay_ns}",))
    walls, cpus = executor.sample(3, 4)
    assert (walls >= 4 * delay_ns).all()
    assert (cpus == 0).all()
    with pytest.raises(ExecutionError, match="sample with warm caches"):
        executor.sample(3, 1, is_cold=True)


def test_what_comes_before_the_call_is_done_once(library: str) -> None:
    executor = executor_of(library, ["copy 0 0 8 1 -", "call 0 1 1 1 1,0 -"])
    executor.sample(3, 2)
    executor.run()
    np.testing.assert_array_equal(executor.get_output("y0"), 2 * vector(0) + 1)


def test_only_a_single_call_can_be_sampled(library: str) -> None:
    with pytest.raises(ExecutionError, match="this one has 2"):
        executor_of(library, [*ONE, "call 0 4 0 1 0,8,1 -"]).sample(3, 1)
    with pytest.raises(ExecutionError, match="this one has 0"):
        executor_of(library, ["copy 0 0 8 0 -"]).sample(3, 1)


@pytest.mark.parametrize("counts", [(0, 1), (1, 0), (-1, 1)])
def test_wrong_counts_are_refused(library: str, counts: tuple[int, int]) -> None:
    with pytest.raises(ExecutionError, match="at least 1 sample of 1 call"):
        executor_of(library, ONE).sample(*counts)


def test_inputs_must_be_set_before_sampling(library: str) -> None:
    executor = make_executor(library, write_program(("cpu",), ONE))
    with pytest.raises(ExecutionError, match="inputs without a value: 'x0'"):
        executor.sample(1, 1)


def test_processor_times_are_measured_and_wall_times_after_them(library: str) -> None:
    calls = ["call 0 3 1 1 8,0 -", "call 0 4 0 1 0,8,1 -"]
    times = executor_of(library, calls).profile_cpu(5)
    assert times.shape == (2,)
    assert (times >= 0).all()
    # Wall times are measured again by the same executor afterwards.
    executor = executor_of(library, calls)
    executor.profile_cpu(3)
    assert (np.median(executor.profile_runs(5), axis=0) > 0).all()


def test_asynchronous_queues_have_no_processor_times(library: str) -> None:
    with pytest.raises(ExecutionError, match="queue 'q0' is asynchronous"):
        executor_of(library, ONE, ("fake:0",)).profile_cpu(3)
