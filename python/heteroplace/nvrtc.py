"""CUDA C++ -> PTX and machine code, by NVIDIA's run-time compiler NVRTC.

It needs neither a CUDA toolkit nor a GPU, so code for any GPU is compiled on any machine. NVRTC of
CUDA 12 and of CUDA 13 will do; the headers are those of its own major version.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from heteroplace.errors import LoweringError

MAJORS = (12, 13)
"""Accepted major versions of CUDA, the preferred one first: drivers for 12 cannot run PTX of 13."""

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
    options += [f"--include-path={folder}" for folder in include_folders(nvrtc)]
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
    """Open NVRTC of CUDA 12 or 13: from NVIDIA's wheels (those of PyTorch too), else the system's.

    Raises
    ------
    LoweringError
        There is none; the message lists what was tried.
    """
    names = [f"libnvrtc.so.{major}" for major in MAJORS]
    in_wheels = [
        str(path) for name in names for place in _nvidia() for path in place.glob(f"*/lib/{name}")
    ]
    faults = []
    for path in [*sorted(in_wheels, key=_major_of_file), *names]:
        try:
            nvrtc = ctypes.CDLL(path)
        except OSError as err:
            faults.append(str(err))
            continue
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        return nvrtc
    raise LoweringError(
        f"NVRTC, which compiles CUDA code, cannot be opened: {'; '.join(faults)}. "
        "Run `pip install 'heteroplace[nvrtc]'` (CUDA 12) or `pip install nvidia-cuda-nvrtc "
        "nvidia-cuda-runtime nvidia-cuda-crt` (CUDA 13)"
    )


def nvrtc_version(nvrtc: ctypes.CDLL) -> tuple[int, int]:
    """Return the version of an NVRTC, as (12, 9)."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(nvrtc, nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def has_tensor_cores(nvrtc: ctypes.CDLL, arch: str) -> bool:
    """Return whether kernels for tensor cores can be compiled: the architecture has them, and
    `crt/mma.h` is installed.

    Parameters
    ----------
    arch
        "sm_90" (also as "sm_9.0"), or "compute_90".
    """
    number = re.fullmatch(r"(?:sm|compute)_(\d+)[a-z]?", arch.replace(".", ""))
    if number is None or int(number[1]) < 70:
        return False
    return any((folder / _MMA).is_file() for folder in include_folders(nvrtc))


_FP16, _MMA = "cuda_fp16.h", "crt/mma.h"
"""TVM's code includes the first for float16; `mma.h`, for tensor cores, includes the second, which
NVIDIA's wheel of the runtime lacks and that of the compiler has."""


def include_folders(nvrtc: ctypes.CDLL) -> list[Path]:
    """Return the folders with the headers of TVM's code, of the compiler's own major version.

    The first has `cuda_fp16.h`; another follows if that one lacks `crt/mma.h`. A header that is
    installed nowhere has no folder.
    """
    folders = list(_header_folders(nvrtc_version(nvrtc)[0]))
    first = (next((f for f in folders if (f / name).is_file()), None) for name in (_FP16, _MMA))
    return list(dict.fromkeys(folder for folder in first if folder is not None))


def _header_folders(major: int) -> Iterator[Path]:
    """Folders with headers of a major version of CUDA: of NVIDIA's wheels, then of toolkits."""
    for place in _nvidia():
        yield place / f"cu{major}" / "include"
        runtime = place / "cuda_runtime" / "include"  # wheels for CUDA 12 have a folder each
        if _major_of_headers(runtime) == major:
            yield from (runtime, place / "cuda_nvcc" / "include")
    home = os.environ.get("CUDA_HOME")
    local = Path("/usr/local")
    toolkits = [local / "cuda", *sorted(local.glob(f"cuda-{major}*"))]
    for toolkit in [*([Path(home)] if home else []), *toolkits]:
        if _major_of_headers(toolkit / "include") == major:
            yield toolkit / "include"


def _major_of_headers(folder: Path) -> int | None:
    """The major version that a folder of headers says; None: it says none."""
    header = folder / "cuda_runtime_api.h"
    if not header.is_file():
        return None
    text = header.read_text(errors="replace")
    match = re.search(r"#define\s+CUDART_VERSION\s+(\d+)\d{3}\b", text)
    return None if match is None else int(match[1])


def _major_of_file(path: str) -> int:
    return int(path.rpartition(".")[2])


def _nvidia() -> list[Path]:
    """The folders that NVIDIA's wheels share."""
    spec = importlib.util.find_spec("nvidia")
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(place) for place in spec.submodule_search_locations]
