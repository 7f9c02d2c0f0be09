"""Convolutions by cuDNN on the fake: which algorithms and calls, and what is refused."""

from __future__ import annotations

import pytest
from convolution_programs import ConvolutionProgram
from library_cases import CONVOLUTION_IN_PARTS as PARTS
from library_cases import SMALL_CONVOLUTION as BLOCK
from library_programs import algorithms, set_operands

from heteroplace.errors import ArtifactError
from tests.fake_cuda.case_library_kernels import SET_STREAM, called
from tests.fake_cuda.control import FakeCuda

pytestmark = pytest.mark.timeout(300)


def test_windows_of_3_by_3_without_steps_may_be_by_winograd(fake: FakeCuda) -> None:
    assert [symbol[-1] for symbol in algorithms(BLOCK)] == ["0", "1", "6"]


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_what_is_no_call_of_its_own_is_computed_in_parts(fake: FakeCuda, cuda_graphs: bool) -> None:
    program = ConvolutionProgram(PARTS, algorithms(PARTS) * 3)
    executor = program.executor(cuda_graphs=cuda_graphs)
    set_operands(executor, program.operands(0))
    names = called(fake, lambda: [fake.run(executor) for _ in range(3)])
    parts = {"cudnnConvolutionForward", "cudnnAddTensor", "cudnnActivationForward"}
    assert {name for name in names if name.startswith("cudnn")} - {SET_STREAM} == (
        set() if cuda_graphs else parts
    )


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
