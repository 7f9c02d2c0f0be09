"""Pytest plug-in of the process that has the fake CUDA: compiles for it, checks every test."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from benchmarks.peers import stock_process
from benchmarks.peers.stock import build_stock
from heteroplace import nvrtc
from heteroplace.machine import cuda_driver, fingerprint, gpu
from tests.fake_cuda.build import compile_for_fake
from tests.fake_cuda.control import FakeCuda


def pytest_configure() -> None:
    """Compile CUDA code for the fake from here on."""
    if not FakeCuda.is_loaded():
        raise pytest.UsageError("the fake CUDA is not in LD_LIBRARY_PATH; see tests/fake_cuda")
    sys.modules["pynvml"] = None  # type: ignore[assignment]  # NVML knows nothing of the fake
    fingerprint.gpu_fingerprint = cuda_driver.cuda_description
    gpu.has_nvidia_driver = lambda: False
    nvrtc.compile_cuda = compile_image
    # Another process would compile for a real GPU.
    stock_process.build_within = lambda mod, params, target, _: build_stock(mod, params, target)


def compile_image(_: object, code: str, arch: str) -> bytes:
    """Compile as `nvrtc.compile_cuda`, for the fake."""
    return nvrtc.cuda_image(*compile_for_fake(code, arch), arch)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what ties two clocks: the fake's are apart by as much as the machine is busy."""
    left_out = [item for item in items if "respects_its_waits" in item.name]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def fake() -> FakeCuda:
    """The fake CUDA."""
    return FakeCuda()


@pytest.fixture(autouse=True)
def rules_hold() -> Iterator[None]:
    """Fail a test in which a rule of CUDA was broken."""
    fake = FakeCuda()
    fake.reset()
    yield
    reports = fake.reports()
    assert not reports, reports
