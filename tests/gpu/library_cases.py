"""What tests of both of NVIDIA's libraries need of each: kernels, small ones and any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from convolution_programs import ConvolutionProgram, random_convolution
from library_programs import LibraryProgram
from product_programs import ProductProgram, random_product

from heteroplace.parts.kernels.nvidia.cublas_products import Product
from heteroplace.parts.kernels.nvidia.cudnn_convolutions import Convolution
from heteroplace.parts.kernels.nvidia.libraries import LIBRARIES, Library
from heteroplace.parts.kernels.nvidia.library_kernels import LibraryKernel

PLAIN_STEPS = ((1, 1), (1, 1), (1, 1), 1)
SMALL_CONVOLUTION = Convolution((1, 2, 5, 6), 4, (3, 3), *PLAIN_STEPS, 0, 1, 2, 3, "relu")
CONVOLUTION_IN_PARTS = Convolution((1, 2, 5, 6), 4, (3, 3), *PLAIN_STEPS, 0, 1, None, 2, "relu")
"""Without a bias: its sum and relu are calls of their own."""


@dataclass(frozen=True)
class LibraryCase:
    """A library and kernels of it."""

    library: Library
    program: Callable[..., LibraryProgram[Any]]
    random: Callable[[int], LibraryKernel]
    """Any kernel, by a seed."""
    small: LibraryKernel
    """With a bias and a relu, which are one call."""
    usual: LibraryKernel
    """As networks have it, with all that can be behind it."""
    deep: LibraryKernel
    """Of so many products that a lower precision is seen."""


CASES = [
    LibraryCase(
        LIBRARIES["cublas"],
        ProductProgram,
        random_product,
        Product(1, 5, 7, 9, False, True, False, False, 0, 1, 2, None, "relu"),
        Product(1, 128, 192, 96, False, True, False, False, 0, 1, 2, 3, "relu"),
        Product(1, 64, 64, 64, False, True, False, False, 0, 1, 2, None, "none"),
    ),
    LibraryCase(
        LIBRARIES["cudnn"],
        ConvolutionProgram,
        random_convolution,
        SMALL_CONVOLUTION,
        Convolution((1, 64, 28, 28), 64, (3, 3), *PLAIN_STEPS, 0, 1, 2, 3, "relu"),
        Convolution((1, 32, 14, 14), 32, (3, 3), *PLAIN_STEPS, 0, 1, 2, None, "relu"),
    ),
]

all_libraries = pytest.mark.parametrize("case", CASES, ids=lambda case: case.library.option)
"""Gives a test each library as `case`."""
