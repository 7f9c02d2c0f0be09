"""Calls of NVIDIA's libraries that fail: told by name, and nothing is left."""

from __future__ import annotations

import time

import numpy as np
import pytest
from library_cases import CASES, CONVOLUTION_IN_PARTS, LibraryCase, all_libraries
from library_programs import algorithms, set_operands

from heteroplace.errors import ExecutionError, HeteroPlaceError
from heteroplace.parts.kernels.nvidia.library_kernels import LibraryKernel
from tests.fake_cuda.case_library_kernels import COMPUTING, FUNCTIONS
from tests.fake_cuda.control import FakeCuda, Live

pytestmark = pytest.mark.timeout(300)

EXECUTION_FAILED = {"cublas": 13, "cudnn": 5000}
ILLEGAL_ADDRESS = 700
LOST = {"cublas": 14, "cudnn": 5003}
"""What a library says where the device has had a fault: neither has a status for that alone."""
TEARDOWN = "Destroy"


def whole_life(case: LibraryCase, kernel: LibraryKernel) -> None:
    """Ask for algorithms, load, run with each, and give all back."""
    program = case.program(kernel, algorithms(kernel))
    executor, operands = program.executor(), program.operands(0)
    set_operands(executor, operands)
    executor.run()
    for output in program.outputs(executor):
        np.testing.assert_allclose(output, program.expected(operands), rtol=1e-5, atol=1e-5)


def await_live(fake: FakeCuda, live: Live, what: str) -> None:
    """Wait until no more lives than before: a thread ends an executor that is slow to end."""
    for _ in range(2000):
        if fake.live() == live:
            return
        time.sleep(0.01)
    raise AssertionError(f"{what}: {fake.live()} is left of {live}")


@pytest.mark.parametrize("is_lost", [False, True], ids=["call", "device"])
@pytest.mark.parametrize(
    ("case", "kernel"),
    [*((case, case.small) for case in CASES), (CASES[1], CONVOLUTION_IN_PARTS)],
    ids=["product", "convolution", "parts"],
)
def test_each_call_that_fails_is_told_and_everything_is_given_back(
    fake: FakeCuda, case: LibraryCase, kernel: LibraryKernel, is_lost: bool
) -> None:
    fake.set("delay_ns", 0)
    option = case.library.option
    whole_life(case, kernel)
    before = fake.calls()
    whole_life(case, kernel)
    counts = {name: count - before.get(name, 0) for name, count in fake.calls().items()}
    functions = {name: n for name, n in counts.items() if name.startswith(FUNCTIONS[option])}
    assert len(functions) >= 13
    code = ILLEGAL_ADDRESS if is_lost else EXECUTION_FAILED[option]
    for function, count in sorted(functions.items()):
        for after in range(count):
            fail_once(fake, case, kernel, (function, after, code))
    whole_life(case, kernel)


def fail_once(
    fake: FakeCuda, case: LibraryCase, kernel: LibraryKernel, failure: tuple[str, int, int]
) -> None:
    """Let one call of a life fail; check what comes of it."""
    function, after, code = failure
    live, what = fake.live(), f"call {after} of {function} fails with {code}"
    fake.fail(function, after, code)
    try:
        whole_life(case, kernel)
    except HeteroPlaceError as error:
        # What a library does not say of a lost device CUDA tells where it is asked next.
        status = LOST[case.library.option] if code == ILLEGAL_ADDRESS else code
        told = (f"({case.library.name} status {status})", f"(CUDA error {code})")
        assert any(text in str(error) for text in told), f"{what}: {error}"
    else:
        is_harmless = TEARDOWN in function or fake.is_pending(function)
        assert is_harmless, f"{what}: nobody noticed"
    await_live(fake, live, what)
    reports = fake.reports()
    assert not reports, f"{what}: {reports}"
    fake.reset()
    fake.set("delay_ns", 0)


@all_libraries
def test_a_kernel_that_faults_on_the_device_is_told(fake: FakeCuda, case: LibraryCase) -> None:
    before = fake.live()
    program = case.program(case.small, algorithms(case.small))
    executor = program.executor()
    set_operands(executor, program.operands(0))
    fake.fail(f"kernel {COMPUTING[case.library.option]}", 1, ILLEGAL_ADDRESS)
    with pytest.raises(ExecutionError, match=r"illegal memory access .*\(CUDA error 700\)"):
        executor.run()
    del executor
    await_live(fake, before, "after a fault")
