"""Kernels of both libraries on the fake: numbers, and what a run may do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from library_cases import CASES, LibraryCase, all_libraries
from library_programs import algorithms, set_operands

from heteroplace.errors import ExecutionError
from heteroplace.parts.kernels.nvidia.known_library_kernels import time_algorithms
from tests.fake_cuda.control import FakeCuda

pytestmark = pytest.mark.timeout(300)

SET_STREAM = "cudnnSetStream"
"""Called where the stream is another one than before, in a run too."""
FUNCTIONS = {"cublas": "cublasLt", "cudnn": "cudnn"}
COMPUTING = {"cublas": "cublasLtMatmul", "cudnn": "cudnnConvolutionBiasActivationForward"}
NUM_OBJECTS = {
    "cublas": 5,  # the handle, the operation and three matrices
    "cudnn": 7,  # the handle; x, w, y, bias, convolution and activation
}
OTHER_VERSIONS = {
    "cublas": (
        130_001,
        r"kernels were chosen for cuBLASLt 12\.9\.3, this machine has cuBLASLt 13\.0\.1; "
        r"place the model again here, or run `pip install nvidia-cublas-cu12==12\.9\.3\.\*`",
    ),
    "cudnn": (
        91_100,
        r"chosen for cuDNN 9\.10\.2, this machine has cuDNN 9\.11\.0; place the model again "
        r"here, or run `pip install nvidia-cudnn-cu12==9\.10\.2\.\*`",
    ),
}


@pytest.mark.parametrize("seed", range(24))
@all_libraries
def test_every_algorithm_of_any_kernel_keeps_the_rules_of_a_run(
    fake: FakeCuda, case: LibraryCase, seed: int
) -> None:
    kernel, device = case.random(seed), seed % 2
    symbols = algorithms(kernel, device=device)
    # Not those that are offered twice, in a bad state, too large, not supported, or that differ.
    assert len(symbols) >= 2
    program = case.program(kernel, symbols * 2, device)  # enough for a graph
    executor = program.executor(cuda_graphs=bool(seed % 3))
    for run in range(3):
        operands = program.operands(run)
        set_operands(executor, operands)
        fake.run(executor) if run % 2 == 0 else executor.run_timed()
        for output in program.outputs(executor):
            np.testing.assert_allclose(
                output, program.expected(operands), rtol=1e-5, atol=1e-5, err_msg=kernel.name
            )


@pytest.mark.parametrize("precision", ["tf32", "half"])
@all_libraries
def test_lower_precision_is_another_result(
    fake: FakeCuda, case: LibraryCase, precision: str
) -> None:
    program = case.program(case.deep, algorithms(case.deep, precision))
    executor, operands = program.executor(), program.operands(0)
    set_operands(executor, operands)
    fake.run(executor)
    exact = program.expected(operands)
    difference = np.abs(program.outputs(executor)[0] - exact).max() / np.abs(exact).max()
    assert 1e-5 < difference < 1e-2


@pytest.mark.parametrize("cuda_graphs", [False, True])
@all_libraries
def test_a_run_only_computes(fake: FakeCuda, case: LibraryCase, cuda_graphs: bool) -> None:
    option = case.library.option
    program = case.program(case.small, algorithms(case.small) * 3)
    executor = program.executor(cuda_graphs=cuda_graphs)
    set_operands(executor, program.operands(0))
    names = called(fake, lambda: [fake.run(executor) for _ in range(3)])
    changed = {name for name in names if name.startswith(FUNCTIONS[option])} - {SET_STREAM}
    # The bias of each call is where it was.
    assert changed == (set() if cuda_graphs else {COMPUTING[option]})
    assert ("cudaGraphLaunch" in names) == cuda_graphs


def called(fake: FakeCuda, act: Callable[[], object]) -> set[str]:
    """The functions that are called meanwhile."""
    before = fake.calls()
    act()
    return {name for name, count in fake.calls().items() if count != before.get(name, 0)}


@all_libraries
def test_requests_in_flight_have_streams_of_their_own(fake: FakeCuda, case: LibraryCase) -> None:
    program = case.program(case.small, algorithms(case.small))
    executor = program.executor(max_in_flight=3)
    requests = [executor.begin() for _ in range(3)]
    for round_ in range(3):
        operands = [program.operands(3 * round_ + at) for at in range(3)]
        for request, each in zip(requests, operands, strict=True):
            set_operands(request, each)
            request.submit()
        for request, each in zip(requests, operands, strict=True):
            request.finish()
            for output in program.outputs(request):
                np.testing.assert_allclose(output, program.expected(each), rtol=1e-5, atol=1e-5)


@all_libraries
def test_the_same_kernel_on_two_gpus(fake: FakeCuda, case: LibraryCase) -> None:
    symbols = [algorithms(case.small, device=at) for at in (0, 1)]
    programs = [case.program(case.small, each, at) for at, each in enumerate(symbols)]
    executors = [program.executor() for program in programs]
    operands = [program.operands(seed) for seed, program in enumerate(programs)]
    for executor, each in zip(executors, operands, strict=True):
        set_operands(executor, each)
    for _ in range(2):
        for program, executor, each in zip(programs, executors, operands, strict=True):
            fake.run(executor)
            for output in program.outputs(executor):
                np.testing.assert_allclose(output, program.expected(each), rtol=1e-5, atol=1e-5)


@all_libraries
def test_the_quicker_algorithm_has_the_shorter_time(fake: FakeCuda, case: LibraryCase) -> None:
    # That of the fakes without scratch memory sleeps for 3 ms.
    fake.set("delay_ns", 0)
    slow, quick = algorithms(case.small)[:2]
    times = time_algorithms(0, case.small, [slow, quick])
    assert times[slow] > times[quick]
    assert time_algorithms(0, case.small, []) == {}


def test_an_algorithm_that_the_fused_call_refuses_is_left_out(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    (case,) = (case for case in CASES if case.library.option == "cudnn")
    symbols = algorithms(case.small)
    refused = symbols[-1]
    fake.set_library("cudnn", "refused_when_fused", int(refused.rpartition(":")[2]))
    draws: list[int] = []
    before = fake.calls()["cudnnCreate"]
    draw = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: draws.append(seed) or draw(seed))
    assert set(time_algorithms(0, case.small, symbols)) == set(symbols) - {refused}
    assert fake.calls()["cudnnCreate"] - before == 2, "a program for each algorithm, not two"
    assert draws == [0], "inputs are drawn again for another program"
    assert time_algorithms(0, case.small, [refused]) == {}


@all_libraries
def test_what_the_library_cannot_compute_has_no_algorithm(
    fake: FakeCuda, case: LibraryCase
) -> None:
    fake.set_library(case.library.symbols, "has_algorithms", 0)
    assert algorithms(case.small) == []


@all_libraries
def test_nothing_is_left_when_an_executor_goes(fake: FakeCuda, case: LibraryCase) -> None:
    before = fake.live()
    executor = case.program(case.small, algorithms(case.small)[:1]).executor()
    made = fake.live().library_objects - before.library_objects
    assert made == NUM_OBJECTS[case.library.option]
    del executor
    assert fake.live() == before


@all_libraries
def test_another_version_of_the_library_is_refused_with_the_mend(
    fake: FakeCuda, case: LibraryCase
) -> None:
    program = case.program(case.small, algorithms(case.small))
    before = fake.live()
    version, message = OTHER_VERSIONS[case.library.option]
    fake.set_library(case.library.symbols, "version", version)
    with pytest.raises(ExecutionError, match=message):
        program.executor()
    assert fake.live() == before


@pytest.mark.parametrize("given", [0, 256])
@all_libraries
def test_too_little_scratch_memory_is_refused_when_it_is_loaded(
    fake: FakeCuda, case: LibraryCase, given: int
) -> None:
    symbol = algorithms(case.small)[1].replace(":4096:", f":{given}:")
    with pytest.raises(ExecutionError, match=rf"needs 4096 bytes of scratch memory.* has {given}"):
        case.program(case.small, [symbol]).executor()
