"""A folder and a part -> a copy of the package there without that part, and how it is run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import heteroplace._core

PACKAGE = Path(__file__).resolve().parents[1] / "python" / "heteroplace"


def copy_package(folder: Path, left_out: str) -> Path:
    """Copy the package and its compiled core; `left_out` is a folder inside it.

    Returns `folder`, which goes into PYTHONPATH.
    """
    copied = folder / "heteroplace"
    shutil.copytree(PACKAGE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(copied / left_out)
    shutil.copy(str(heteroplace._core.__file__), copied)
    return folder


def run_python(
    path: Sequence[Path], arguments: Sequence[str], cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Run Python with these folders in its path; `-S`: the finder of the checkout is not added."""
    folders = [*map(str, path), sysconfig.get_path("purelib")]
    return subprocess.run(
        [sys.executable, "-S", "-W", "ignore", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )
