"""CUDA C++ -> PTX and machine code, by NVIDIA's run-time compiler NVRTC.

It needs neither a CUDA toolkit nor a GPU, so code for any GPU is compiled on any machine.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import struct
from pathlib import Path

from heteroplace.errors import LoweringError

_MACHINE_CODE_MARK = b"HPMCODE1"
"""Stands before capability, length and bytes of the machine code in an image."""


def compile_cuda(nvrtc: ctypes.CDLL, code: str, arch: str) -> bytes:
    """Compile CUDA C++ to PTX and, for a real architecture, to its machine code as well.

    Returns
    -------
    bytes
        See `cuda_image`.

    Parameters
    ----------
    nvrtc
        The loaded libnvrtc.
    code
        One translation unit.
    arch
        "sm_80", or "compute_80" for PTX alone.

    Raises
    ------
    LoweringError
        The code has errors, or NVRTC does not know `arch`.
    """
    options = [f"--gpu-architecture={arch}", "--std=c++17"]
    options += [f"--include-path={folder}" for folder in _cuda_include_folders()]
    program = ctypes.c_void_p()
    _check(
        nvrtc,
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), code.encode(), b"tvm_kernels.cu", 0, None, None
        ),
    )
    try:
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = nvrtc.nvrtcCompileProgram(program, len(options), array)
        if status != 0:
            log = _read(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
            raise LoweringError(
                f"NVRTC cannot compile TVM's CUDA code for {arch} "
                f"({_error_text(nvrtc, status)}):\n{log}"
            )
        ptx = _read(nvrtc, program, "PTX").rstrip(b"\0")
        if not arch.startswith("sm_"):
            return ptx
        return cuda_image(ptx, _read(nvrtc, program, "CUBIN"), arch)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def cuda_image(ptx: bytes, machine_code: bytes, arch: str) -> bytes:
    """Put PTX and machine code into one image.

    TVM hands it to the driver as a text, which ends at its first NUL: it then takes the PTX. The
    executor finds the machine code behind that (`DeviceCode` of the core), which the driver need
    not compile, and takes the PTX only on GPUs of another kind.
    """
    capability = int("".join(filter(str.isdigit, arch)))
    head = struct.pack("<iQ", capability, len(machine_code))
    return ptx + b"\0" + _MACHINE_CODE_MARK + head + machine_code


def _read(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    """Return NVRTC's "PTX", "CUBIN" or "ProgramLog" of a program; texts end with a NUL."""
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, text))
    return text.raw


def _check(nvrtc: ctypes.CDLL, status: int) -> None:
    if status != 0:
        raise LoweringError(f"NVRTC failed: {_error_text(nvrtc, status)}")


def _error_text(nvrtc: ctypes.CDLL, status: int) -> str:
    return str(nvrtc.nvrtcGetErrorString(status).decode())


def load_nvrtc() -> ctypes.CDLL:
    """Open NVRTC of CUDA 12: the one of NVIDIA's wheel, else the system's.

    Raises
    ------
    LoweringError
        libnvrtc.so.12 is not installed.
    """
    name = "libnvrtc.so.12"
    places = [folder / "lib" / name for folder in _nvidia_packages("cuda_nvrtc")]
    try:
        nvrtc = ctypes.CDLL(str(next(filter(Path.is_file, places), name)))
    except OSError as err:
        raise LoweringError(
            f"{name}, which compiles CUDA code, cannot be opened: {err}. "
            "Run `pip install nvidia-cuda-nvrtc-cu12`"
        ) from err
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc


def _cuda_include_folders() -> list[Path]:
    """Return folders with cuda_fp16.h and its like: of NVIDIA's wheel, else of a toolkit."""
    folders = [folder / "include" for folder in _nvidia_packages("cuda_runtime")]
    folders.append(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include")
    return [folder for folder in folders if (folder / "cuda_fp16.h").is_file()][:1]


def _nvidia_packages(name: str) -> list[Path]:
    """Return the folders of NVIDIA's wheels for one part of CUDA."""
    spec = importlib.util.find_spec("nvidia")
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(place) / name for place in spec.submodule_search_locations]
