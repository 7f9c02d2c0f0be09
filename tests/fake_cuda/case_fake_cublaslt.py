"""The fake cuBLASLt itself: a rule that is broken is reported."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import numpy as np
import pytest
from library_programs import algorithms, set_operands
from product_programs import ProductProgram

from heteroplace.parts.kernels.nvidia.cublas_products import Product
from tests.fake_cuda.control import NAME, FakeCuda

pytestmark = pytest.mark.timeout(60)

PLAIN = Product(1, 4, 8, 16, False, True, False, False, 0, 1)
INVALID_VALUE, NOT_SUPPORTED = 7, 15
FLOAT32 = 68


@pytest.fixture
def library() -> ctypes.CDLL:
    return ctypes.CDLL(NAME)


def made(create: Callable[..., int], *arguments: int) -> ctypes.c_void_p:
    """What a function of the library makes."""
    handle = ctypes.c_void_p()
    assert create(ctypes.byref(handle), *arguments) == 0
    return handle


def in_another_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def test_an_object_that_does_not_live_is_reported(fake: FakeCuda, library: ctypes.CDLL) -> None:
    before = fake.live()
    description = made(library.cublasLtMatmulDescCreate, FLOAT32, 0)
    assert fake.live().library_objects == before.library_objects + 1
    assert library.cublasLtMatmulDescDestroy(description) == 0
    assert fake.live() == before
    assert library.cublasLtMatmulDescDestroy(description) == INVALID_VALUE
    assert "an object that does not live" in fake.reports()


def test_an_object_of_another_kind_is_reported(fake: FakeCuda, library: ctypes.CDLL) -> None:
    handle = made(library.cublasLtCreate)
    assert library.cublasLtMatrixLayoutDestroy(handle) == INVALID_VALUE
    assert "an object that does not live" in fake.reports()
    assert library.cublasLtDestroy(handle) == 0


def test_what_is_made_in_a_run_is_reported(fake: FakeCuda, library: ctypes.CDLL) -> None:
    handles = []
    with fake.running():
        in_another_thread(lambda: handles.append(made(library.cublasLtCreate)))
    assert "cublasLtCreate: memory or code changes during a run" in fake.reports()
    assert library.cublasLtDestroy(handles[0]) == 0


def test_code_that_comes_in_a_run_or_a_capture_is_reported(fake: FakeCuda) -> None:
    program = ProductProgram(PLAIN, algorithms(PLAIN))
    executor = program.executor()
    set_operands(executor, program.operands(0))
    fake.reset()  # forgets what was brought to the device when the program was loaded
    fake.run(executor)
    assert "loads the code of an algorithm in a run" in fake.reports()


def test_a_handle_of_another_device_is_reported(fake: FakeCuda, library: ctypes.CDLL) -> None:
    handle = made(library.cublasLtCreate)
    fake.set_current_device(1)
    assert library.cublasLtDestroy(handle) == 0
    fake.set_current_device(0)
    assert "a handle of another device than the current one" in fake.reports()


@pytest.mark.parametrize(
    ("attribute", "size", "status"), [(3, 4, 0), (3, 8, INVALID_VALUE), (99, 4, INVALID_VALUE)]
)
def test_attributes_have_sizes(
    fake: FakeCuda, library: ctypes.CDLL, attribute: int, size: int, status: int
) -> None:
    description = made(library.cublasLtMatmulDescCreate, FLOAT32, 0)
    value = (ctypes.c_char * 8)()
    set_attribute = library.cublasLtMatmulDescSetAttribute
    assert set_attribute(description, attribute, value, ctypes.c_size_t(size)) == status
    assert bool(fake.reports()) == (status != 0)
    assert library.cublasLtMatmulDescDestroy(description) == 0


def test_an_unknown_compute_type_is_not_supported(library: ctypes.CDLL) -> None:
    handle = ctypes.c_void_p()
    assert library.cublasLtMatmulDescCreate(ctypes.byref(handle), 70, 0) == NOT_SUPPORTED


def test_precisions_round_and_float32_does_not(fake: FakeCuda) -> None:
    x, w = np.full((4, 16), 1 + 2**-12, "float32"), np.ones((8, 16), "float32")
    results = {}
    for precision in ("float32", "tf32", "half"):
        program = ProductProgram(PLAIN, algorithms(PLAIN, precision)[:1])
        executor = program.executor()
        set_operands(executor, {0: x[None], 1: w[None]})
        fake.run(executor)
        (results[precision],) = program.outputs(executor)
    assert np.all(results["float32"] == np.float32(16 * (1 + 2**-12)))
    assert np.all(results["tf32"] == 16)
    assert np.all(results["half"] == 16)
