"""What NVIDIA's cuBLASLt offers on this machine: its version, and its algorithms for a product.

The library is found by the C++ core (`src/exec/devices/cublaslt_api.h`), which calls it.
"""

from __future__ import annotations

import heteroplace._core as _core


def cublaslt_version(libtvm_path: str) -> int:
    """Return the version of cuBLASLt, as 120903 for 12.9.3.

    Raises
    ------
    ExecutionError
        There is no cuBLASLt of CUDA 12, or TVM has no CUDA.
    """
    return int(_core.cublaslt_version(libtvm_path))


def cublaslt_algorithms(
    libtvm_path: str, device: int, product: str, max_workspace_bytes: int, max_count: int
) -> list[str]:
    """Return a product with each algorithm that the library offers, likely ones first.

    Parameters
    ----------
    libtvm_path
        Of the TVM in use.
    device
        Ordinal of a GPU.
    product
        Symbol (`heteroplace.codegen.products.Product.text`).
    max_workspace_bytes
        That an algorithm may need.
    max_count
        Of algorithms.

    Returns
    -------
    list of str
        Symbols; empty: the library cannot compute the product there.

    Raises
    ------
    ArtifactError
        `product` is none.
    ExecutionError
        There is no such library or device, or it fails.
    """
    return list(
        _core.cublaslt_algorithms(libtvm_path, device, product, max_workspace_bytes, max_count)
    )
