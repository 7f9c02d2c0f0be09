"""Fixtures of the executor's tests."""

from __future__ import annotations

import executor_programs as programs
import pytest
import tvm


@pytest.fixture(scope="session")
def module() -> tvm.runtime.Module:
    """The kernels in memory."""
    return programs.build_module()


@pytest.fixture(scope="session")
def library(module: tvm.runtime.Module, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The kernels in a library file."""
    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    module.export_library(str(path))
    return str(path)
