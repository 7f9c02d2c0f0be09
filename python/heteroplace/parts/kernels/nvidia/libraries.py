"""Libraries of NVIDIA's that compute kernels, by the option that asks for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import relay

from heteroplace.parts.kernels.nvidia.cublas_products import (
    Product,
    ends_of_product,
    product_of,
)
from heteroplace.parts.kernels.nvidia.cudnn_convolutions import Convolution, convolution_of
from heteroplace.parts.kernels.nvidia.library_kernels import LibraryKernel
from heteroplace.relay.expr_map import ExprSet


@dataclass(frozen=True)
class Library:
    """A library, and which functions it computes."""

    option: str
    """"cublas": of a placement, and how its makers begin."""
    name: str
    """"cuBLASLt", as people call it."""
    symbols: str
    """"cublaslt": how the symbols of its kernels begin."""
    kernel: str
    """"product": what such a kernel is."""
    find: Callable[[relay.Function], LibraryKernel | None]
    """The kernel that a fused function is; None: it is none of this library's."""
    cuts: Callable[[relay.Function], ExprSet] = lambda _: ExprSet()
    """The values at which a fused function is split, for the library to compute a part."""


LIBRARIES = {
    each.option: each
    for each in (
        Library("cublas", "cuBLASLt", Product.library, "product", product_of, ends_of_product),
        Library("cudnn", "cuDNN", Convolution.library, "convolution", convolution_of),
    )
}
"""By their options."""
