"""Compile TVM's Cython sources: calls from Python to TVM then take a third of the time.

    python tvm_interface.py SOURCES MODULE COMPILER ...

SOURCES is the folder of `core.pyx`, MODULE the file of the extension module to write, COMPILER ...
the command of a C++ compiler. The same sources and the same Python give the same bytes. Without
the module TVM calls its library by ctypes, with the same results.

Only the standard library is used, and nothing of heteroplace is imported: `tvm_wheel.py` runs this
file before anything is installed, and reports the first line that tells of an error.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

CYTHON_VERSION = "3.0.12"
MODULE = "tvm._ffi._cy3.core"

_HEADER = Path(__file__).resolve().parent / "data" / "tvm_c_api.h"
_INCLUDED = ("c_runtime_api.h", "c_backend_api.h", "ndarray.h")
"""Headers of TVM that the sources name, all of them in `tvm/runtime`."""
_CHANGES = (
    # Of a Python function that C++ has called: Ctrl-C is no `Exception`, and C++ would go on.
    ("packed_func.pxi", "except Exception as err:", "except BaseException as err:"),
    # An abstract class takes long to say what is an instance of it; most arguments are names.
    (
        "packed_func.pxi",
        "elif isinstance(arg, Integral):",
        "elif not isinstance(arg, str) and isinstance(arg, (int, Integral)):",
    ),
    # Made for each object that is returned, and not used.
    ("object.pxi", "    handle = ctypes_handle(chandle)\n", ""),
)
"""What is changed in TVM's sources: a file, a text that it has once, and what it should be."""


def compile_interface(sources: Path, module: Path, compiler: Sequence[str]) -> None:
    """Compile `core.pyx` for this Python.

    Raises
    ------
    subprocess.CalledProcessError
        Cython cannot be had, or it or the compiler fails; what they say is printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        shutil.copytree(sources, work / "sources")
        for name, before, after in _CHANGES:
            _change(work / "sources" / name, before, after)
        headers = work / "include" / "tvm" / "runtime"
        headers.mkdir(parents=True)
        for included in _INCLUDED:
            shutil.copy(_HEADER, headers / included)
        # The C++ code holds the path of its source, so that is a relative one.
        cython = [sys.executable, "-m", "cython", "-3", "--cplus", "--module-name", MODULE]
        command = [*cython, "sources/core.pyx", "-o", "core.cpp"]
        subprocess.run(command, cwd=work, env={**os.environ, **_cython(work)}, check=True)
        options = ["-std=c++17", "-O2", "-shared", "-fPIC", "-s", "-Wl,--build-id=none"]
        folders = ["-Iinclude", f"-I{sysconfig.get_paths()['include']}"]
        command = [*compiler, *options, *folders, "core.cpp", "-o", str(module)]
        subprocess.run(command, cwd=work, check=True)


def _change(source: Path, before: str, after: str) -> None:
    text = source.read_text()
    if text.count(before) != 1:
        sys.exit(f"error: {source.name} has no `{before.strip()}`: it is of another TVM")
    source.write_text(text.replace(before, after))


def _cython(work: Path) -> dict[str, str]:
    """Return the variables with which Python finds Cython: none if it has the right version."""
    present = next(iter(importlib.metadata.distributions(name="cython")), None)
    if present is not None and present.version == CYTHON_VERSION:
        return {}
    folder = str(work / "cython")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run(
        [*pip, "--no-deps", f"--target={folder}", f"cython=={CYTHON_VERSION}"], check=True
    )
    return {"PYTHONPATH": folder}


if __name__ == "__main__":
    compile_interface(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3:])
