"""NVIDIA's libraries on this machine: their versions, their algorithms for a kernel, its symbols.

They are found by the C++ core (`src/exec/devices/libraries/library_api.h`), which calls them.
"""

from __future__ import annotations

import heteroplace._core as _core

_PREFIXES = ("cublaslt:", "cudnn:")
_WORKSPACE_FIELD = 7


def is_library_kernel(symbol: str) -> bool:
    """Tell whether a library of NVIDIA's computes a kernel, by its symbol."""
    return symbol.startswith(_PREFIXES)


def library_workspace_bytes(symbol: str) -> int:
    """Return the scratch memory that the algorithm of a library's kernel needs."""
    return int(symbol.split(":")[_WORKSPACE_FIELD])


def library_version(libtvm_path: str, library: str) -> int:
    """Return the version of a library, as 120903 for 12.9.3.

    Parameters
    ----------
    library
        "cublaslt" or "cudnn".

    Raises
    ------
    ExecutionError
        There is no cuBLASLt of CUDA 12 or 13, no cuDNN 9, or TVM has no CUDA.
    ArtifactError
        `library` is none of them.
    """
    return int(_core.library_version(libtvm_path, library))


def library_algorithms(
    libtvm_path: str, device: int, kernel: str, max_workspace_bytes: int, max_count: int
) -> list[str]:
    """Return a kernel with each algorithm that its library offers, likely ones first.

    Parameters
    ----------
    libtvm_path
        Of the TVM in use.
    device
        Ordinal of a GPU.
    kernel
        Symbol without an algorithm (`src/exec/devices/libraries/library_kernel.h`).
    max_workspace_bytes
        That an algorithm may need.
    max_count
        Of algorithms.

    Returns
    -------
    list of str
        Symbols; empty: the library cannot compute the kernel there.

    Raises
    ------
    ArtifactError
        `kernel` is none.
    ExecutionError
        There is no such library or device, or it fails.
    """
    return list(
        _core.library_algorithms(libtvm_path, device, kernel, max_workspace_bytes, max_count)
    )
