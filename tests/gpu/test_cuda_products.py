"""Products of matrices by cuBLASLt against numpy, on a GPU with the library."""

from __future__ import annotations

import numpy as np
import pytest
from product_programs import (
    ProductProgram,
    algorithms,
    expected,
    operand_shapes,
    random_product,
    set_operands,
)

from heteroplace.codegen.products import Product
from heteroplace.errors import ExecutionError
from heteroplace.measure.known_library_kernels import time_algorithms
from heteroplace.native.libraries import library_version
from heteroplace.tvm_bridge import library_path

tvm = pytest.importorskip("tvm")

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

GELU_ERROR = 1e-3
"""Of GELU alone: NVIDIA says its form, and not how exactly it computes a tanh."""


@pytest.fixture(autouse=True)
def has_library() -> None:
    """Skip where there is no GPU, or no cuBLASLt."""
    if not tvm.cuda(0).exist:
        pytest.skip("needs an NVIDIA GPU")
    try:
        library_version(str(library_path()), "cublaslt")
    except ExecutionError as error:
        pytest.skip(str(error))


def check(product: Product, symbols: list[str], tolerance: float, cuda_graphs: bool) -> None:
    """Compare each algorithm with float64, in two runs; the program is long enough for a graph."""
    program = ProductProgram(product, symbols * 3)
    executor = program.executor(cuda_graphs=cuda_graphs)
    for seed in range(2):
        operands = program.operands(seed)
        set_operands(executor, operands)
        executor.run()
        exact = expected(product, operands)
        scale = max(1.0, float(np.abs(exact).max()))
        for output in program.outputs(executor):
            np.testing.assert_allclose(output / scale, exact / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize("seed", range(24))
def test_any_product_equals_numpy(seed: int) -> None:
    product = random_product(seed)
    symbols = algorithms(product)
    if not symbols:
        pytest.skip(f"the library does not compute {product.name}")
    tolerance = GELU_ERROR if product.activation == "gelu" else 1e-5
    check(product, symbols, tolerance, cuda_graphs=bool(seed % 2))


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_a_dense_layer_as_networks_have_it(cuda_graphs: bool) -> None:
    product = Product(1, 128, 192, 96, False, True, False, False, 0, 1, 2, 3, "relu")
    symbols = algorithms(product)
    assert len(operand_shapes(product)) == 4
    assert symbols
    check(product, symbols, 1e-5, cuda_graphs)
    assert all(each > 0 for each in time_algorithms(0, product, symbols))


@pytest.mark.parametrize("precision", ["tf32", "half"])
def test_lower_precision_stays_near(precision: str) -> None:
    product = Product(1, 64, 64, 64, False, True, False, False, 0, 1, 2, None, "none")
    check(product, algorithms(product, precision), 1e-2, cuda_graphs=False)
