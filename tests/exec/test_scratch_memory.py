"""Scratch memory of compiled kernels: counted as used, whatever the program says of it."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from executor_programs import EXTENT, VECTOR_BYTES, make_executor, vector, write_program
from tvm import te

pytestmark = pytest.mark.timeout(60)

ROWS = 64


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Kernels of one input that add up the rows of a buffer too large for the stack."""
    a = te.placeholder((EXTENT,), name="a")
    rows = te.compute((ROWS, EXTENT), lambda i, j: a[j] + tvm.tir.Cast("float32", i))
    k = te.reduce_axis((0, ROWS))
    b = te.compute((EXTENT,), lambda j: te.sum(rows[k, j], axis=k))
    lowered = tvm.IRModule()
    for name in ("add", "twice"):
        lowered.update(tvm.lower(te.create_schedule(b.op), [a, b], name=name))
    path = tmp_path_factory.mktemp("kernels") / "scratch.so"
    tvm.build(lowered, target="llvm").export_library(str(path))
    return str(path)


@pytest.mark.parametrize("reserved_bytes", [0, 128, ROWS * VECTOR_BYTES, 10**6])
def test_what_kernels_use_is_counted_however_much_was_reserved(
    library: str, reserved_bytes: int
) -> None:
    text = write_program(("cpu",), ["call 0 0 1 1 8,0 -"], outputs=(0,))
    if reserved_bytes:
        text = text.replace("tensor 0 ", f"workspace 0 {reserved_bytes}\ntensor 0 ", 1)
    executor = make_executor(library, text)
    executor.set_input("x0", vector(1))
    assert executor.memory_bytes()["ram"].workspace_bytes == 0
    expected = ROWS * vector(1) + sum(range(ROWS))
    for _ in range(3):
        executor.run()
        np.testing.assert_array_equal(executor.get_output("y0"), expected)
        assert executor.memory_bytes()["ram"].workspace_bytes == ROWS * VECTOR_BYTES


def test_fake_devices_kernels_have_scratch_memory_too(library: str) -> None:
    executor = make_executor(
        library, write_program(("fake:0",), ["call 0 0 1 1 8,0 -"], outputs=(0,))
    )
    executor.set_input("x0", vector(1))
    executor.run()
    expected = ROWS * vector(1) + sum(range(ROWS))
    np.testing.assert_array_equal(executor.get_output("y0"), expected)
