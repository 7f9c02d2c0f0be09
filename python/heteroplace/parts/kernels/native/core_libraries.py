"""NVIDIA's libraries on this machine: their versions, and their algorithms for a kernel.

They are opened by the C++ of this part (`src/parts/kernels/library_api.h`), which calls them.
"""

from __future__ import annotations

import heteroplace._core as _core

library_version = _core.library_version
library_algorithms = _core.library_algorithms
