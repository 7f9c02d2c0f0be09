"""Programs of two hosts with a GPU each, on one machine: staged values go from one to the other."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from executor_programs import EXTENT, VECTOR_BYTES, libtvm_path, vector

from heteroplace.native.execute import Executor
from heteroplace.parts.hosts.native.core_ranks import local_transports

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

_NUM_RUNS = 30


def write_host(rank: int, instructions: list[str]) -> str:
    """The program of a host; tensors 0..3 in its memory, 4 and 5 in that of its GPU."""
    peer = 1 - rank
    lines = [
        f'heteroplace-program 2 {rank} 2 "host {rank}"',
        f"space 0 ram 1 0 {4 * VECTOR_BYTES}",
        f"space 1 gpu 2 0 {2 * VECTOR_BYTES}",
        f"queue 0 core cpu 1 0 0 {rank}",
        "queue 1 gpu cuda 2 0 1 -",
        "queue 2 up copy 2 0 -1 -",
        "queue 3 down copy 2 0 -1 -",
        f"queue 4 to send 1 0 -1 {peer}",
        f"queue 5 from recv 1 0 -1 {peer}",
        *(f"tensor {t} 0 arena {t * VECTOR_BYTES} 2 32 {EXTENT}" for t in range(4)),
        *(f"tensor {4 + t} 1 arena {t * VECTOR_BYTES} 2 32 {EXTENT}" for t in range(2)),
    ]
    if rank == 0:
        lines += [f"tensor 6 0 external - 2 32 {EXTENT}", "input x 6", "output y 3"]
    kernels = ["kernel 0 twice", "kernel 1 add", "kernel 2 twice_cuda"]
    return "\n".join([*lines, *kernels, *instructions, "end", ""])


BUNDLE = "heteroplace-programs 2 2\n" + "".join(
    (
        write_host(
            0,
            [
                "call 0 0 0 1 6,0 -",
                "copy 2 1 0 4 0:1",
                "call 1 2 2 1 4,5 2:1",
                "copy 3 3 5 1 1:1",
                "send 4 4 0 1 3:1",
                "recv 5 8 1 2 -",
                "call 0 9 1 1 1,2,3 3:1,5:1",
            ],
        ),
        write_host(
            1,
            [
                "recv 5 4 0 0 -",
                "copy 2 5 0 4 5:1",
                "call 1 6 2 1 4,5 2:1",
                "copy 3 7 5 1 1:1",
                "send 4 8 1 1 3:1",
            ],
        ),
    )
)
"""y = v + (2 v + 1) with v = 2 (2 x + 1) + 1, which one GPU computes and the other one takes."""


@pytest.mark.parametrize("cuda_words", [True, False])
def test_gpus_of_two_hosts_exchange_values(cuda_library: str, cuda_words: bool) -> None:
    executors = [
        Executor(libtvm_path(), cuda_library, BUNDLE, cuda_words=cuda_words, transport=transport)
        for transport in local_transports(2, seed=1, max_delay_ns=100_000)
    ]

    def serve() -> None:
        for _ in range(_NUM_RUNS):
            executors[1].run()

    thread = threading.Thread(target=serve)
    thread.start()
    for seed in range(_NUM_RUNS):
        executors[0].set_input("x", vector(seed))
        executors[0].run()
        computed = 2 * (2 * vector(seed) + 1) + 1
        np.testing.assert_array_equal(executors[0].get_output("y"), 3 * computed + 1)
    thread.join()
