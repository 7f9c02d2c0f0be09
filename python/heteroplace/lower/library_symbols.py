"""Kernels that a library of NVIDIA's computes: they have no code, and their symbols say all."""

from __future__ import annotations

_PREFIXES = ("cublaslt:", "cudnn:")
_WORKSPACE_FIELD = 7


def is_library_kernel(symbol: str) -> bool:
    """Tell whether a library of NVIDIA's computes a kernel, by its symbol."""
    return symbol.startswith(_PREFIXES)


def library_workspace_bytes(symbol: str) -> int:
    """Return the scratch memory that the algorithm of a library's kernel needs."""
    return int(symbol.split(":")[_WORKSPACE_FIELD])
