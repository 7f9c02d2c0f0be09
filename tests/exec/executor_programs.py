"""Kernels and hand-written programs for the executor's tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
from tvm import te  # noqa: E402

from heteroplace.native.execute import Executor  # noqa: E402

EXTENT = 256
"""Elements of a vector in these tests."""

VECTOR_BYTES = EXTENT * 4

KERNELS = ("add", "twice")
"""Kernels that every program of `write_program` declares, in this order."""

needs_two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two workers need two cores"
)


def libtvm_path() -> str:
    """Path of the loaded libtvm."""
    return str(Path(tvm.__file__).parent / "libtvm.so")


def build_module(target: str = "llvm", parallel: bool = True) -> tvm.runtime.Module:
    """Compile the kernels: `add`, `twice` (parallel), `row_sums` (parallel), `tiny`, `invert`.

    For a CUDA target their names end in `_cuda`.
    """
    a = te.placeholder((EXTENT,), name="a")
    b = te.placeholder((EXTENT,), name="b")
    one = te.placeholder((1,), name="one")
    rows = te.placeholder((64, EXTENT), name="rows")
    flag = te.placeholder((EXTENT,), name="flag", dtype="bool")
    k = te.reduce_axis((0, EXTENT), name="k")
    kernels = {
        "add": [a, b, te.compute((EXTENT,), lambda i: a[i] + b[i])],
        "twice": [a, te.compute((EXTENT,), lambda i: a[i] * 2.0 + 1.0)],
        "row_sums": [rows, te.compute((64,), lambda i: te.sum(rows[i, k], axis=k))],
        "tiny": [one, te.compute((1,), lambda i: one[i] + 1.0)],
        "invert": [flag, te.compute((EXTENT,), lambda i: tvm.tir.Not(flag[i]))],
    }
    lowered = tvm.IRModule()
    for name, arguments in kernels.items():
        schedule = te.create_schedule(arguments[-1].op)
        if target.startswith("cuda"):
            threads = te.thread_axis("threadIdx.x")
            schedule[arguments[-1]].bind(schedule[arguments[-1]].op.axis[0], threads)
        elif parallel and name in ("twice", "row_sums"):
            schedule[arguments[-1]].parallel(schedule[arguments[-1]].op.axis[0])
        suffix = "_cuda" if target.startswith("cuda") else ""
        lowered.update(tvm.lower(schedule, arguments, name=name + suffix))
    return tvm.build(lowered, target=target)


def vector(seed: int) -> np.ndarray:
    """Small whole numbers."""
    return np.random.default_rng(seed).integers(-8, 8, EXTENT).astype("float32")


def write_program(
    queues: tuple[str, ...],
    instructions: list[str],
    *,
    num_slots: int = 8,
    num_inputs: int = 1,
    outputs: tuple[int, ...] = (),
) -> str:
    """Write a program over float32 vectors in one space.

    Parameters
    ----------
    queues
        Per queue "cpu" (queue i on core i) or "fake:<delay ns>"; or "cuda" for all, and then
        every vector is in the memory of cuda:0.
    instructions
        Lines of the program. Tensors 0 .. num_slots-1 are vectors in the arena, the inputs
        `x0`, `x1`, ... follow.
    outputs
        Tensors of the outputs `y0`, `y1`, ...
    """
    device = 2 if "cuda" in queues else 1
    text = ["heteroplace-program 1", f"space 0 ram {device} 0 {num_slots * VECTOR_BYTES}"]
    for i, queue in enumerate(queues):
        kind, _, delay = queue.partition(":")
        last = "-" if kind == "cuda" else delay or i
        text.append(f"queue {i} q{i} {kind} {device} 0 0 {last}")
    for slot in range(num_slots):
        text.append(f"tensor {slot} 0 arena {slot * VECTOR_BYTES} 2 32 {EXTENT}")
    for i in range(num_inputs):
        text.append(f"tensor {num_slots + i} 0 external - 2 32 {EXTENT}")
        text.append(f"input x{i} {num_slots + i}")
    text += [f"output y{i} {tensor}" for i, tensor in enumerate(outputs)]
    text += [f"kernel {i} {symbol}" for i, symbol in enumerate(KERNELS)]
    return "\n".join([*text, *instructions, "end", ""])


def make_executor(
    library: str, text: str, blob: np.ndarray | None = None, **options: Any
) -> Executor:
    """Make an executor of a library file."""
    return Executor(libtvm_path(), library, text, blob=blob, **options)
