"""CUDA kernels for the executor's tests, compiled by NVRTC: they need no nvcc."""

from __future__ import annotations

from pathlib import Path

import executor_programs as programs

from heteroplace.tvm_bridge import register_cuda_compiler


def build_cuda_library(path: Path, architecture: str) -> str:
    """Write one library with the kernels for the CPU and, as `<name>_cuda`, for CUDA."""
    register_cuda_compiler()
    module = programs.build_module(target=f"cuda -arch={architecture} -host=llvm")
    module.import_module(programs.build_module())
    module.export_library(str(path))
    return str(path)
