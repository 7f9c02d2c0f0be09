"""CUDA kernels for the GPU tests, compiled by NVRTC: they need no nvcc."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "exec"))

import executor_programs as programs

from heteroplace.tvm_bridge import register_cuda_compiler

tvm = programs.tvm


def build_cuda_library(path: Path, architecture: str) -> str:
    """Write one library with the kernels for the CPU and, as `<name>_cuda`, for CUDA."""
    register_cuda_compiler()
    module = programs.build_module(target=f"cuda -arch={architecture} -host=llvm")
    module.import_module(programs.build_module())
    module.export_library(str(path))
    return str(path)


@pytest.fixture(scope="session")
def cuda_library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The kernels of the executor's tests for both kinds of device."""
    if not tvm.cuda(0).exist:
        pytest.skip("needs an NVIDIA GPU")
    architecture = "sm_" + tvm.cuda(0).compute_version.replace(".", "")
    return build_cuda_library(tmp_path_factory.mktemp("cuda") / "kernels.so", architecture)
