"""Compile TVM's Cython sources: calls from Python to TVM then take a third of the time.

    python tvm_interface.py SOURCES TARGET

SOURCES is the folder of `core.pyx`. The extension module is written into TARGET, which has to
exist; the same sources and the same Python give the same bytes. Without the module TVM calls its
library by ctypes, with the same results.

Only the standard library is used, and nothing of heteroplace is imported: `tvm_wheel.py` runs this
file before anything is installed.
"""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

CYTHON_VERSION = "3.0.12"
MODULE = "tvm._ffi._cy3.core"

_HEADER = Path(__file__).resolve().parent / "data" / "tvm_c_api.h"
_HANDLED, _ALL_HANDLED = "except Exception as err:", "except BaseException as err:"
"""In `packed_func.pxi`, what a Python function raises that C++ calls. By the first, Ctrl-C there
would be no error for C++, which would go on."""
_INCLUDED = ("c_runtime_api.h", "c_backend_api.h", "ndarray.h")
"""Headers of TVM that the sources name, all of them in `tvm/runtime`."""


def compile_interface(sources: Path, target: Path) -> Path:
    """Compile `core.pyx` for this Python, and return the path of the module in `target`.

    Raises
    ------
    RuntimeError
        There is no C++ compiler, Cython cannot be had, or one of the two fails.
    """
    module = target / f"core{sysconfig.get_config_var('EXT_SUFFIX')}"
    with tempfile.TemporaryDirectory(dir=target) as name:
        work = Path(name)
        shutil.copytree(sources, work / "sources")
        functions = work / "sources" / "packed_func.pxi"
        text = functions.read_text()
        if text.count(_HANDLED) != 1:
            raise RuntimeError(f"{functions.name} has no `{_HANDLED}`: another TVM")
        functions.write_text(text.replace(_HANDLED, _ALL_HANDLED))
        headers = work / "include" / "tvm" / "runtime"
        headers.mkdir(parents=True)
        for included in _INCLUDED:
            shutil.copy(_HEADER, headers / included)
        # Relative paths, since C++ code that Cython writes holds them.
        cython = [sys.executable, "-m", "cython", "-3", "--cplus", "--module-name", MODULE]
        _execute([*cython, "sources/core.pyx", "-o", "core.cpp"], work, _cython(work))
        options = ["-std=c++17", "-O2", "-shared", "-fPIC", "-s", "-Wl,--build-id=none"]
        folders = ["-Iinclude", f"-I{sysconfig.get_paths()['include']}"]
        _execute([*_compiler(), *options, *folders, "core.cpp", "-o", str(module)], work)
    return module


def _cython(work: Path) -> dict[str, str]:
    """Return the variables with which Python finds Cython: none if it has the right version."""
    present = next(iter(importlib.metadata.distributions(name="cython")), None)
    if present is not None and present.version == CYTHON_VERSION:
        return {}
    folder = str(work / "cython")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    _execute([*pip, "install", "--no-deps", "--target", folder, f"cython=={CYTHON_VERSION}"], work)
    return {"PYTHONPATH": folder}


def _compiler() -> list[str]:
    """Return the command of the C++ compiler: $CXX, else c++, g++ or clang++."""
    chosen = os.environ.get("CXX")
    candidates = [shlex.split(chosen)] if chosen else [["c++"], ["g++"], ["clang++"]]
    for command in candidates:
        if command and shutil.which(command[0]):
            return command
    looked_for = ", ".join(map(shlex.join, candidates))
    raise RuntimeError(f"no C++ compiler found ({looked_for}): run `sudo apt-get install g++`")


def _execute(
    command: Sequence[str], folder: Path, variables: Mapping[str, str] = MappingProxyType({})
) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        lines = done.stdout.strip().splitlines() or ["no output"]
        telling = next((line for line in lines if "error" in line.lower()), lines[-1])
        raise RuntimeError(f"`{shlex.join(command)}` failed ({done.returncode}): {telling}")


def main() -> int:
    """Run the command line; return the exit status."""
    sources, target = map(Path, sys.argv[1:])
    try:
        print(compile_interface(sources.resolve(), target.resolve()))
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
