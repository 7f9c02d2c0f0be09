"""Convolutions by cuDNN against numpy, on a GPU with the library."""

from __future__ import annotations

import numpy as np
import pytest
from convolution_programs import ConvolutionProgram, algorithms, expected, random_convolution
from product_programs import set_operands

from heteroplace.codegen.convolutions import Convolution
from heteroplace.errors import ExecutionError
from heteroplace.measure.known_library_kernels import time_algorithms
from heteroplace.native.libraries import library_version
from heteroplace.tvm_bridge import library_path

tvm = pytest.importorskip("tvm")

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def has_library() -> None:
    """Skip where there is no GPU, or no cuDNN."""
    if not tvm.cuda(0).exist:
        pytest.skip("needs an NVIDIA GPU")
    try:
        library_version(str(library_path()), "cudnn")
    except ExecutionError as error:
        pytest.skip(str(error))


def check(kernel: Convolution, symbols: list[str], tolerance: float, cuda_graphs: bool) -> None:
    """Compare each algorithm with float64, in two runs; the program is long enough for a graph."""
    program = ConvolutionProgram(kernel, symbols * 3)
    executor = program.executor(cuda_graphs=cuda_graphs)
    for seed in range(2):
        operands = program.operands(seed)
        set_operands(executor, operands)
        executor.run()
        exact = expected(kernel, operands)
        scale = max(1.0, float(np.abs(exact).max()))
        for output in program.outputs(executor):
            np.testing.assert_allclose(output / scale, exact / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize("seed", range(24))
def test_any_convolution_equals_numpy(seed: int) -> None:
    kernel = random_convolution(seed)
    symbols = algorithms(kernel)
    if not symbols:
        pytest.skip(f"the library does not compute {kernel.name}")
    check(kernel, symbols, 1e-5, cuda_graphs=bool(seed % 2))


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_a_residual_block_as_networks_have_it(cuda_graphs: bool) -> None:
    steps = ((1, 1), (1, 1), (1, 1), 1)
    kernel = Convolution((1, 64, 28, 28), 64, (3, 3), *steps, 0, 1, 2, 3, "relu")
    symbols = algorithms(kernel)
    assert symbols
    check(kernel, symbols, 1e-5, cuda_graphs)
    assert all(each > 0 for each in time_algorithms(0, kernel, symbols))


@pytest.mark.parametrize("precision", ["tf32", "half"])
def test_lower_precision_stays_near(precision: str) -> None:
    steps = ((1, 1), (1, 1), (1, 1), 1)
    kernel = Convolution((1, 32, 14, 14), 32, (3, 3), *steps, 0, 1, 2, None, "relu")
    check(kernel, algorithms(kernel, precision), 1e-2, cuda_graphs=False)
