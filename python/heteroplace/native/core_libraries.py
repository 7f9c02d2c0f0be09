"""NVIDIA's libraries on this machine: their versions, their algorithms for a kernel, its symbols.

They are found by the C++ core (`src/exec/devices/libraries/library_api.h`), which calls them.
"""

from __future__ import annotations

import heteroplace._core as _core

library_version = _core.library_version
library_algorithms = _core.library_algorithms

_PREFIXES = ("cublaslt:", "cudnn:")
_WORKSPACE_FIELD = 7


def is_library_kernel(symbol: str) -> bool:
    """Tell whether a library of NVIDIA's computes a kernel, by its symbol."""
    return symbol.startswith(_PREFIXES)


def library_workspace_bytes(symbol: str) -> int:
    """Return the scratch memory that the algorithm of a library's kernel needs."""
    return int(symbol.split(":")[_WORKSPACE_FIELD])
