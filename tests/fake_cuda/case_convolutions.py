"""Convolutions by cuDNN on the fake: numbers, what a run may do, and each call failing once."""

from __future__ import annotations

import numpy as np
import pytest
from convolution_programs import ConvolutionProgram, algorithms, expected, random_convolution
from product_programs import set_operands

from heteroplace.codegen.convolutions import Convolution
from heteroplace.errors import ArtifactError, ExecutionError, HeteroPlaceError
from heteroplace.measure.known_library_kernels import time_algorithms
from tests.fake_cuda.control import FakeCuda

pytestmark = pytest.mark.timeout(300)

PLAIN_STEPS = ((1, 1), (1, 1), (1, 1), 1)
BLOCK = Convolution((1, 2, 5, 6), 4, (3, 3), *PLAIN_STEPS, 0, 1, 2, 3, "relu")
PARTS = Convolution((1, 2, 5, 6), 4, (3, 3), *PLAIN_STEPS, 0, 1, None, 2, "relu")
EXECUTION_FAILED = 5000
TEARDOWN = "Destroy"


@pytest.mark.parametrize("seed", range(24))
def test_every_algorithm_of_any_convolution_keeps_the_rules_of_a_run(
    fake: FakeCuda, seed: int
) -> None:
    kernel, device = random_convolution(seed), seed % 2
    symbols = algorithms(kernel, device=device)
    # Not those that are offered twice, differ from run to run, are too large or not supported.
    assert [symbol[-1] for symbol in symbols][:2] == ["0", "1"]
    program = ConvolutionProgram(kernel, symbols * 2, device)  # enough for a graph
    executor = program.executor(cuda_graphs=bool(seed % 3))
    for run in range(3):
        operands = program.operands(run)
        set_operands(executor, operands)
        fake.run(executor) if run % 2 == 0 else executor.run_timed()
        for output in program.outputs(executor):
            np.testing.assert_allclose(
                output, expected(kernel, operands), rtol=1e-5, atol=1e-5, err_msg=kernel.name
            )


def test_windows_of_3_by_3_without_steps_may_be_by_winograd(fake: FakeCuda) -> None:
    assert [symbol[-1] for symbol in algorithms(BLOCK)] == ["0", "1", "6"]


@pytest.mark.parametrize("precision", ["tf32", "half"])
def test_lower_precision_is_another_result(fake: FakeCuda, precision: str) -> None:
    program = ConvolutionProgram(BLOCK, algorithms(BLOCK, precision))
    executor, operands = program.executor(), program.operands(0)
    set_operands(executor, operands)
    fake.run(executor)
    exact = expected(BLOCK, operands)
    difference = np.abs(program.outputs(executor)[0] - exact).max() / np.abs(exact).max()
    assert 1e-5 < difference < 1e-2


@pytest.mark.parametrize(
    ("kernel", "functions"),
    [
        (BLOCK, {"cudnnConvolutionBiasActivationForward"}),
        (PARTS, {"cudnnConvolutionForward", "cudnnAddTensor", "cudnnActivationForward"}),
    ],
)
@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_a_run_only_computes(
    fake: FakeCuda, kernel: Convolution, functions: set[str], cuda_graphs: bool
) -> None:
    program = ConvolutionProgram(kernel, algorithms(kernel) * 3)
    executor = program.executor(cuda_graphs=cuda_graphs)
    set_operands(executor, program.operands(0))
    before = fake.calls()
    for _ in range(3):
        fake.run(executor)
    after = fake.calls()
    names = {name for name in after if after[name] != before.get(name, 0)}
    changed = {name for name in names if name.startswith("cudnn")} - {"cudnnSetStream"}
    assert changed == (set() if cuda_graphs else functions)
    assert ("cudaGraphLaunch" in names) == cuda_graphs


def test_the_quicker_algorithm_has_the_shorter_time(fake: FakeCuda) -> None:
    # That of the fake without scratch memory sleeps for 3 ms.
    fake.set("delay_ns", 0)
    slow, quick, _ = algorithms(BLOCK)
    times = time_algorithms(0, BLOCK, [slow, quick])
    assert times[0] > times[1]


def test_what_the_library_cannot_compute_has_no_algorithm(fake: FakeCuda) -> None:
    fake.set_cudnn("has_algorithms", 0)
    assert algorithms(BLOCK) == []


def test_nothing_is_left_when_an_executor_goes(fake: FakeCuda) -> None:
    before = fake.live()
    executor = ConvolutionProgram(BLOCK, algorithms(BLOCK)[:1]).executor()
    # The handle; x, w, y, bias, convolution and activation.
    assert fake.live().library_objects == before.library_objects + 7
    del executor
    assert fake.live() == before


def test_another_version_of_the_library_is_refused_with_the_mend(fake: FakeCuda) -> None:
    program = ConvolutionProgram(BLOCK, algorithms(BLOCK))
    before = fake.live()
    fake.set_cudnn("version", 91_100)
    with pytest.raises(
        ExecutionError,
        match=r"chosen for cuDNN 9\.10\.2, this machine has cuDNN 9\.11\.0; place the model again "
        r"here, or run `pip install nvidia-cudnn-cu12==9\.10\.2\.\*`",
    ):
        program.executor()
    assert fake.live() == before


def test_too_little_scratch_memory_is_refused_when_it_is_loaded(fake: FakeCuda) -> None:
    symbol = algorithms(BLOCK)[1]
    with pytest.raises(ExecutionError, match="needs 4096 bytes of scratch memory, the program has"):
        ConvolutionProgram(BLOCK, [symbol.replace(":4096:", ":256:")]).executor()


def call_all(kernel: Convolution) -> None:
    program = ConvolutionProgram(kernel, algorithms(kernel))
    executor = program.executor()
    set_operands(executor, program.operands(0))
    executor.run()


@pytest.mark.parametrize("kernel", [BLOCK, PARTS], ids=["one", "parts"])
def test_each_call_may_fail_once(fake: FakeCuda, kernel: Convolution) -> None:
    before, live = fake.calls(), fake.live()
    call_all(kernel)
    after = fake.calls()
    names = [name for name in after if name.startswith("cudnn")]
    counts = {name: after[name] - before.get(name, 0) for name in names}
    assert sum(counts.values()) > 30
    for name, count in counts.items():
        for at in range(count):
            fake.fail(name, at, EXECUTION_FAILED)
            if TEARDOWN in name:
                call_all(kernel)  # what giving back answers is not told
            else:
                with pytest.raises(HeteroPlaceError, match=r"CUDNN_STATUS_EXECUTION_FAILED.*5000"):
                    call_all(kernel)
            assert not fake.is_pending(name), name
            assert fake.live() == live, f"{name} {at}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (":float32:", ":float64:", "has the precision 'float64'"),
        (":relu:", ":gelu:", "has the activation 'gelu'"),
        ("1x2x5x6x4x3x3", "1x2x5x6x4x3", "has the extents '1x2x5x6x4x3'"),
        ("1x2x5x6x4x3x3", "0x2x5x6x4x3x3", "has '0' as an extent"),
        ("1x2x5x6x4x3x3", "1x2x5x6x4x9x3", "window of a convolution is larger"),
        ("1x2x5x6x4", "1x2x2000000000x2000000000x4", "is too large"),
        (":1x1x1x1x1x1x1:", ":0x1x1x1x1x1x1:", "a stride or a dilation of 0"),
        (":1x1x1x1x1x1x1:", ":1x1x1x1x1x1x0:", "0 groups"),
        (":1x1x1x1x1x1x1:", ":1x1x1x1x1x1x4:", "2 channels and 4 filters in 4 groups"),
        (":1x1x1x1x1x1x1:", ":1x1x1x1x1x1:", "has the steps"),
        (":1x1x1x1x1x1x1:", ":1x1x0x1x1x1x1:", "the sum of the float32 convolution"),
        (":0,1,2,3:", ":0,1,2:", "has the operands '0,1,2'"),
        (":0,1,2,3:", ":0,1,2,4:", "has argument 4 as its sum"),
        (":0,1,2,3:", ":1,0,2,3:", "the data of the float32 convolution"),
        (":91002:", ":x:", "has 'x' as the version"),
    ],
)
def test_damaged_convolutions_are_refused_by_the_program(old: str, new: str, message: str) -> None:
    symbol = algorithms(BLOCK)[0]
    assert old in symbol
    program = ConvolutionProgram(BLOCK, [symbol])
    with pytest.raises(ArtifactError, match=rf"line \d+: .*{message}"):
        program.executor_of(program.text().replace(symbol, symbol.replace(old, new)))


def test_an_algorithm_that_is_none_is_refused_by_the_program() -> None:
    symbol = algorithms(BLOCK)[0]
    with pytest.raises(ArtifactError, match="has '8' as its algorithm"):
        ConvolutionProgram(BLOCK, [symbol[:-1] + "8"]).executor()
