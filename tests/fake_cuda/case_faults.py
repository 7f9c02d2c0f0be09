"""Every call of CUDA fails once: a typed error, nothing left, and the next executor works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from executor_programs import make_executor
from mixed_programs import MixedWriter

from heteroplace.errors import HeteroPlaceError
from heteroplace.native.execute import Executor
from tests.fake_cuda.control import FakeCuda, Live

pytestmark = pytest.mark.timeout(600)

OUT_OF_MEMORY = 2
ILLEGAL_ADDRESS = 700

TEARDOWN = {
    "cudaEventDestroy",
    "cudaStreamDestroy",
    "cudaFree",
    "cudaFreeHost",
    "cudaHostUnregister",
    "cuModuleUnload",
    "cudaGraphDestroy",
    "cudaGraphExecDestroy",
}
"""Functions that give back: what they say is nothing that a caller could mend."""

HARMLESS = {
    "cudaHostAlloc": "copies are staged by CUDA",
    "cudaHostRegister": "copies are staged by CUDA",
    "cuDeviceGetAttribute": "cores and GPUs wait by events",
    "cudaHostGetDevicePointer": "cores and GPUs wait by events",
    "cuCtxGetCurrent": "while giving back",
    "cuCtxSetCurrent": "while giving back",
}
"""Functions whose failure need not fail anything, and what happens then."""

WRITER = MixedWriter(19, (0, 1), bytes_of_workspace=4096)
TEXT = WRITER.text(16)


def load(library: str) -> Executor:
    """Load the program."""
    return make_executor(library, TEXT)


def run(executor: Executor) -> None:
    """Run once as in a benchmark and once timed, and check all numbers."""
    executor.set_input("x0", WRITER.values[-2])
    executor.set_input("x1", WRITER.values[-1])
    for once in (executor.run, executor.run_timed):
        once()
        for slot in range(WRITER.num_slots):
            np.testing.assert_array_equal(executor.get_output(f"y{slot}"), WRITER.values[slot])


def calls_of(fake: FakeCuda, act: Callable[[], object]) -> dict[str, int]:
    """How often each function is called by an act."""
    before = fake.calls()
    act()
    after = fake.calls()
    return {
        name: after[name] - before.get(name, 0)
        for name in after
        if after[name] > before.get(name, 0)
    }


def whole_life(library: str) -> None:
    """Load, run, and give everything back."""
    executor = load(library)
    run(executor)


def functions_of_a_life(library: str, fake: FakeCuda) -> dict[str, int]:
    """Calls of each function in load, run and teardown; after a first life, which warms up."""
    whole_life(library)
    return calls_of(fake, lambda: whole_life(library))


def fail_once(library: str, fake: FakeCuda, function: str, after: int, code: int) -> None:
    """Let one call of a life fail; check what comes of it, and that the next life is right."""
    before = fake.live()
    fake.fail(function, after, code)
    case = f"call {after} of {function} fails with {code}"
    try:
        whole_life(library)
    except HeteroPlaceError as error:
        text = str(error)
        assert f"CUDA error {code}" in text, f"{case}: {text}"
        assert "cuda:" in text, f"{case}: {text}"
    else:
        is_harmless = function in TEARDOWN or function in HARMLESS or fake.is_pending(function)
        assert is_harmless, f"{case}: nobody noticed"
    await_live(fake, before, case)
    reports = fake.reports()
    assert not reports, f"{case}: {reports}"
    fake.reset()


def await_live(fake: FakeCuda, expected: Live, case: str) -> None:
    """Wait until no more lives than before: a thread ends an executor that is slow to end."""
    for _ in range(2000):
        if fake.live() == expected:
            return
        time.sleep(0.01)
    raise AssertionError(f"{case}: {fake.live()} is left of {expected}")


@pytest.mark.parametrize("code", [OUT_OF_MEMORY, ILLEGAL_ADDRESS], ids=["call", "device"])
@pytest.mark.parametrize("num_calls", [4, pytest.param(10_000, marks=pytest.mark.slow)])
def test_calls_that_fail_are_told_and_everything_is_given_back(
    cuda_library: str, fake: FakeCuda, num_calls: int, code: int
) -> None:
    # Spread over all calls of a function, so that load, run and teardown have their turn. After an
    # illegal address the device is lost, and every later call fails too.
    fake.set("delay_ns", 0)
    for function, count in sorted(functions_of_a_life(cuda_library, fake).items()):
        for after in sorted({i * (count - 1) // num_calls for i in range(num_calls + 1)}):
            fake.set("delay_ns", 0)
            fail_once(cuda_library, fake, function, after, code)
    whole_life(cuda_library)


def test_a_failed_launch_names_step_queue_kernel_and_cause(
    cuda_library: str, fake: FakeCuda
) -> None:
    executor = load(cuda_library)
    executor.set_input("x0", WRITER.values[-2])
    executor.set_input("x1", WRITER.values[-1])
    fake.fail("cuLaunchKernel", 1, 701)
    with pytest.raises(
        HeteroPlaceError,
        match=r"step \d+ failed on queue 'gpu\d' \(cuda:\d\) in kernel '\w+_cuda': cannot launch "
        r"GPU function '\w+_cuda_kernel' \(grid \(1, 1, 1\), block \(256, 1, 1\)\) on cuda:\d: "
        r"too many resources requested for launch \(CUDA error 701\)$",
    ):
        executor.run()
    run(executor)  # the device itself is well


def test_a_kernel_that_faults_names_its_queue_and_ends_nothing(
    cuda_library: str, fake: FakeCuda
) -> None:
    before, threads = fake.live(), threading.active_count()
    executor = load(cuda_library)
    executor.set_input("x0", WRITER.values[-2])
    executor.set_input("x1", WRITER.values[-1])
    fake.fail("kernel add_cuda_kernel", 1, ILLEGAL_ADDRESS)
    for _ in range(3):
        with pytest.raises(
            HeteroPlaceError, match=r"illegal memory access was encountered \(CUDA error 700\)"
        ):
            executor.run()
    del executor
    assert fake.live() == before
    assert threading.active_count() == threads
