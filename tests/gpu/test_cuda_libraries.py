"""Kernels by cuBLASLt and cuDNN against numpy, on a GPU with the libraries."""

from __future__ import annotations

import numpy as np
import pytest
from library_cases import LibraryCase, all_libraries
from library_programs import algorithms, set_operands

from heteroplace.errors import ExecutionError
from heteroplace.parts.kernels.native.core_libraries import library_version
from heteroplace.parts.kernels.nvidia.known_library_kernels import time_algorithms
from heteroplace.parts.kernels.nvidia.library_kernels import LibraryKernel
from heteroplace.tvm_bridge import library_path

tvm = pytest.importorskip("tvm")

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

GELU_ERROR = 1e-3
"""Of GELU alone: NVIDIA says its form, and not how exactly it computes a tanh."""


@pytest.fixture(autouse=True)
def has_library(case: LibraryCase) -> None:
    """Skip where there is no GPU, or not this library."""
    if not tvm.cuda(0).exist:
        pytest.skip("needs an NVIDIA GPU")
    try:
        library_version(str(library_path()), case.library.symbols)
    except ExecutionError as error:
        pytest.skip(str(error))


def check(
    case: LibraryCase,
    kernel: LibraryKernel,
    symbols: list[str],
    tolerance: float,
    cuda_graphs: bool = False,
) -> None:
    """Compare each algorithm with float64, in two runs; the program is long enough for a graph."""
    program = case.program(kernel, symbols * 3)
    executor = program.executor(cuda_graphs=cuda_graphs)
    for seed in range(2):
        operands = program.operands(seed)
        set_operands(executor, operands)
        executor.run()
        exact = program.expected(operands)
        scale = max(1.0, float(np.abs(exact).max()))
        for output in program.outputs(executor):
            np.testing.assert_allclose(output / scale, exact / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize("seed", range(24))
@all_libraries
def test_any_kernel_equals_numpy(case: LibraryCase, seed: int) -> None:
    kernel = case.random(seed)
    symbols = algorithms(kernel)
    if not symbols:
        pytest.skip(f"the library does not compute {kernel.name}")
    tolerance = GELU_ERROR if ":gelu:" in kernel.name else 1e-5
    check(case, kernel, symbols, tolerance, cuda_graphs=bool(seed % 2))


@pytest.mark.parametrize("cuda_graphs", [False, True])
@all_libraries
def test_a_layer_as_networks_have_it(case: LibraryCase, cuda_graphs: bool) -> None:
    symbols = algorithms(case.usual)
    assert symbols
    check(case, case.usual, symbols, 1e-5, cuda_graphs)
    times = time_algorithms(0, case.usual, symbols)
    assert times
    assert all(each > 0 for each in times.values())


@pytest.mark.parametrize("precision", ["tf32", "half"])
@all_libraries
def test_lower_precision_stays_near(case: LibraryCase, precision: str) -> None:
    symbols = algorithms(case.deep, precision)
    assert symbols
    check(case, case.deep, symbols, 1e-2)
