"""Builds the fake CUDA, and compiles TVM's CUDA code for it.

The libraries have the names of NVIDIA's, so a process whose LD_LIBRARY_PATH begins with their
folder gets them in place of the real ones, TVM as well as heteroplace.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
FOLDER = SOURCES.parent.parent / "build" / "fake_cuda"
"""Where the libraries are; kernels go to `kernels` beside them."""

CUBLAS = FOLDER / "cublas"
CUDNN = FOLDER / "cudnn"
"""Where those of cuBLASLt and cuDNN are."""

_COMPILER = os.environ.get("CXX", "g++")
_VERSIONS = "libcudart.so.12 { global: cuda*; cu*; fake_*; local: *; };\n"
_MEETINGS = ("__syncthreads", "__shfl", "__activemask")
_KERNEL = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\((\d+)\) )?(\w+)\([^;{]*\)\s*\{'
)


def build_fake() -> Path:
    """Build the libraries unless they are newer than their sources; return their folder."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "kernels").mkdir(exist_ok=True)
    target = FOLDER / "libcudart.so.12"
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        changed = max(path.stat().st_mtime for path in SOURCES.iterdir())
        if not target.exists() or target.stat().st_mtime < changed:
            versions = FOLDER / "versions.map"
            versions.write_text(_VERSIONS)
            # One unit: most of the time goes into headers.
            unit = FOLDER / "fake_cuda.cc"
            parts = sorted(SOURCES.glob("*.cc"))
            unit.write_text("".join(f'#include "{path}"\n' for path in parts))
            _compile(
                [
                    str(unit),
                    "-std=c++20",
                    "-O0",
                    "-U_FORTIFY_SOURCE",
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                    "-pthread",
                    "-ldl",
                ],
                target,
                [f"-Wl,--version-script={versions}"],
            )
            # The driver's name for the same functions.
            linked = [
                "-Wl,--no-as-needed",
                str(target),
                "-Wl,-rpath,$ORIGIN",
                "-x",
                "c",
                "/dev/null",
            ]
            _compile(linked, FOLDER / "libcuda.so.1", [])
            # In folders of their own, so that a process may lack them.
            linked[2] = "-Wl,-rpath,$ORIGIN/.."
            for library in (CUBLAS / "libcublasLt.so.12", CUDNN / "libcudnn.so.9"):
                library.parent.mkdir(exist_ok=True)
                _compile(linked, library, [])
    return FOLDER


def compile_for_fake(code: str, arch: str) -> tuple[bytes, bytes]:
    """Compile TVM's CUDA code for the host; return what stands for PTX and for machine code."""
    entries = []
    matches = list(_KERNEL.finditer(code))
    for match, following in zip(matches, [*matches[1:], None], strict=True):
        body = code[match.end() : following.start() if following else len(code)]
        has_meetings = str(any(word in body for word in _MEETINGS)).lower()
        entries.append(f"FAKE_KERNEL({match[2]}, {has_meetings}, {match[1] or 1024})")
    text = "\n".join(['#include "host_kernels.h"', code, *entries, ""])
    name = hashlib.sha256((text + (SOURCES / "host_kernels.h").read_text()).encode()).hexdigest()
    library = FOLDER / "kernels" / f"{name[:16]}.so"
    if not library.exists():
        source = library.with_suffix(f".{os.getpid()}.cc")
        source.write_text(text)
        options = ["-std=c++17", "-O1", "-w", "-ffp-contract=off", f"-I{SOURCES}"]
        _compile([str(source), *options], library, [])
    return (
        f"// fake PTX\n// {library}\n".encode(),
        f"fake machine code {arch}\n// {library}\n".encode(),
    )


def _compile(arguments: list[str], target: Path, linking: list[str]) -> None:
    """Write a shared library; nobody sees it half written."""
    part = target.with_suffix(f".{os.getpid()}.part")
    shared = [_COMPILER, "-shared", "-fPIC", f"-Wl,-soname,{target.name}", "-o", str(part)]
    done = subprocess.run([*shared, *arguments, *linking], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{target.name} does not compile:\n{done.stdout}{done.stderr}")
    part.rename(target)
