"""Guarded calls and copies of a GPU: the host reads a decision that the device has made."""

from __future__ import annotations

import numpy as np
import pytest
from executor_programs import EXTENT, VECTOR_BYTES, make_executor, vector

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

CELLS = 4
ROWS_BYTES = CELLS * VECTOR_BYTES


def routed_program(is_grouped: bool) -> str:
    """Cells of "moe" become 2 x + 1 or x + x on the GPU, one after the other or side by side;
    "inner" is in its branch 0; "exit" has one branch, 2 v + 1, which is predicted."""
    group = ["group 0 7 1 2 1:2,2:2"] if is_grouped else []
    waits = "-" if is_grouped else "1:2,2:2"
    rows = f"2 32 {CELLS},{EXTENT}"
    lines = [
        "heteroplace-program 3",
        "space 0 ram 1 0 256",
        f"space 1 gpu0 2 0 {2 * ROWS_BYTES + VECTOR_BYTES}",
        "queue 0 gpu cuda 2 0 1 -",
        "queue 1 down copy 2 0 -1 -",
        "queue 2 up copy 2 0 -1 -",
        f"tensor 0 1 arena 0 {rows}",
        f"tensor 1 1 arena 0 2 32 {EXTENT}",
        f"tensor 2 1 arena {ROWS_BYTES} {rows}",
        f"tensor 3 1 arena {ROWS_BYTES} 2 32 {EXTENT}",
        *(f"tensor {4 + i} 1 external - 0 32 2" for i in range(4)),
        *(f"tensor {8 + i} 0 arena {64 * i} 0 32 2" for i in range(4)),
        f"tensor 12 0 external - {rows}",
        f"tensor 13 1 external - 2 32 {EXTENT}",
        f"tensor 14 1 arena {2 * ROWS_BYTES} 2 32 {EXTENT}",
        *(f"input {name} {4 + i}" for i, name in enumerate(("loads", "offsets", "inner", "exit"))),
        "input x 12",
        "input v 13",
        "output y 2",
        "output inner_loads 10",
        "output z 14",
        "kernel 0 add_cuda",
        "kernel 1 twice_cuda",
        "router 0 moe 8 9 - rounds 4 4 1 1;1 1:1,1:2",
        "router 1 inner 10 - - rounds 1 0 1 1;1 2:3",
        "router 2 exit 11 - - rounds 1 0 1 1;1 1:3",
        "copy 1 0 4 8 -",
        "copy 1 1 5 9 -",
        "copy 1 2 7 11 -",
        "copy 2 3 12 0 -",
        "copy 2 4 12 2 -",
        "branch_copy 2 5 0 0 active 6 10 1:2",
        "branch_call 0 6 2 0 predicted 1 0=1(13,14) -",
        *group,
        f"branch_call 0 7 0 0 active 1 1=1(1@,3@) {waits}",
        "branch_call 0 8 0 1 active 1 1=0(1@,1@,3@) -",
        "branch_call 0 9 2 0 missed 1 0=1(13,14) 1:3",
        "end",
    ]
    return "\n".join(lines)


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.parametrize("cuda_words", [True, False])
def test_guards_of_a_gpu_wait_for_what_they_read(
    cuda_library: str, cuda_words: bool, is_grouped: bool
) -> None:
    executor = make_executor(cuda_library, routed_program(is_grouped), cuda_words=cuda_words)
    executor.start_trace(None)
    x = np.arange(CELLS * EXTENT, dtype="float32").reshape(CELLS, EXTENT)
    executor.set_input("x", x)
    executor.set_input("inner", np.array([7, 8], "int32"))
    random = np.random.default_rng(5)
    for run in range(24):
        first = int(random.integers(0, CELLS + 1))
        second = int(random.integers(0, CELLS - first + 1))
        exits = int(random.integers(0, 2))
        executor.predict_routes([("exit", [0] if random.integers(0, 2) else [])])
        executor.set_input("loads", np.array([first, second], "int32"))
        executor.set_input("offsets", np.array([0, first], "int32"))
        executor.set_input("exit", np.array([exits, 0], "int32"))
        executor.set_input("v", vector(run))
        executor.run()
        y = x.copy()
        y[:first] = 2 * x[:first] + 1
        y[first : first + second] *= 2
        np.testing.assert_array_equal(executor.get_output("y"), y)
        inner = [7, 8] if first else [0, 0]
        np.testing.assert_array_equal(executor.get_output("inner_loads"), np.array(inner, "int32"))
        if exits:
            np.testing.assert_array_equal(executor.get_output("z"), 2 * vector(run) + 1)
        if run == 12:
            trace = executor.stop_trace(None)
            assert len(trace.requests) == 13
