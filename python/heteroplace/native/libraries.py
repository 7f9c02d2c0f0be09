"""What NVIDIA's libraries offer on this machine: their versions, and algorithms for a kernel.

They are found by the C++ core (`src/exec/devices/libraries/library_api.h`), which calls them.
"""

from __future__ import annotations

import heteroplace._core as _core


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
        Symbol (`heteroplace.parts.kernels.nvidia.library_kernels.LibraryKernel.unchosen`).
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
