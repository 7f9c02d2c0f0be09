"""Runs pytest in a process that has the fake CUDA: the cases of this folder by default."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from tests.fake_cuda.build import CUBLAS, CUDNN, SOURCES, build_fake

ROOT = SOURCES.parent.parent
CASES = [str(path.relative_to(ROOT)) for path in sorted(SOURCES.glob("case_*.py"))]
_BOTH = ("cuda_executor", "cuda_libraries", "cuda_routed", "hosts", "sorting")
GPU_TESTS = [f"tests/gpu/test_{name}.py" for name in _BOTH]


def run_pytest(
    arguments: Sequence[str], is_shown: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run pytest with the fake; the result has what it wrote unless that is shown."""
    path = f"{build_fake()}:{CUBLAS}:{CUDNN}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    plugins = ["-p", "tests.fake_cuda.plugin", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command = [sys.executable, "-m", "pytest", "-q", "-n0", *plugins, *arguments]
    environment = {**os.environ, "LD_LIBRARY_PATH": path, "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        command, cwd=ROOT, env=environment, text=True, capture_output=not is_shown, check=False
    )


if __name__ == "__main__":
    sys.exit(run_pytest(sys.argv[1:] or ["-m", "", *CASES, *GPU_TESTS], is_shown=True).returncode)
