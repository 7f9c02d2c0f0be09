"""CUDA kernels for the GPU tests, compiled by NVRTC: they need no nvcc."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "exec"))

import executor_programs as programs

tvm = programs.tvm


def compile_ptx(code: str, architecture: str) -> bytes:
    """Compile CUDA code with the NVRTC that libtvm has loaded."""
    nvrtc = ctypes.CDLL("libnvrtc.so.12")
    program = ctypes.c_void_p()

    def check(status: int) -> None:
        if status != 0:
            size = ctypes.c_size_t()
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"NVRTC status {status}: {log.value.decode()}")

    check(
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"kernels.cu", 0, None, None)
    )
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture={architecture}".encode())
    check(nvrtc.nvrtcCompileProgram(program, 1, options))
    size = ctypes.c_size_t()
    check(nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
    ptx = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetPTX(program, ptx))
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx.raw


def build_cuda_library(path: Path, architecture: str) -> str:
    """Write one library with the kernels for the CPU and, as `<name>_cuda`, for CUDA."""
    before = tvm.get_global_func("tvm_callback_cuda_compile")
    tvm.register_func(
        "tvm_callback_cuda_compile",
        lambda code, target: bytearray(compile_ptx(code, architecture.replace("sm", "compute"))),
        override=True,
    )
    try:
        module = programs.build_module(target=f"cuda -arch={architecture} -host=llvm")
    finally:
        tvm.register_func("tvm_callback_cuda_compile", before, override=True)
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
