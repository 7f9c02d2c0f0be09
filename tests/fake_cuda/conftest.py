"""Fixtures of the cases that run on the fake only; their process has the plug-in too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_TESTS = Path(__file__).resolve().parent.parent
sys.path += [str(_TESTS / "gpu"), str(_TESTS / "exec")]


@pytest.fixture(scope="session")
def cuda_library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The kernels of the executor's tests for both kinds of device."""
    from cuda_library import build_cuda_library

    return build_cuda_library(tmp_path_factory.mktemp("cuda") / "kernels.so", "sm_80")
