"""Fixtures of the GPU tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "exec"))

tvm = pytest.importorskip("tvm")
from cuda_library import build_cuda_library  # noqa: E402


@pytest.fixture(scope="session")
def cuda_library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The kernels of the executor's tests for both kinds of device."""
    if not tvm.cuda(0).exist:
        pytest.skip("needs an NVIDIA GPU")
    architecture = "sm_" + tvm.cuda(0).compute_version.replace(".", "")
    return build_cuda_library(tmp_path_factory.mktemp("cuda") / "kernels.so", architecture)
