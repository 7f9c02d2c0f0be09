"""The executor on a real GPU: kernels, copies, events across queues, timelines, failures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from executor_programs import EXTENT, VECTOR_BYTES, make_executor, vector, write_program
from mixed_programs import MixedWriter
from test_random_programs import NUM_SLOTS, Writer
from test_session_programs import ask, beside, in_place

from heteroplace.errors import ExecutionError

tvm = pytest.importorskip("tvm")

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


def mixed_program() -> str:
    """x -> CPU: 2x+1 -> GPU: (2x+1) + weight -> CPU: 2(...)+1, beside CPU work on x."""
    lines = [
        "heteroplace-program 1",
        f"space 0 ram 1 0 {4 * VECTOR_BYTES}",
        f"space 1 gpu0 2 0 {4 * VECTOR_BYTES}",
        "queue 0 cpu cpu 1 0 0 0",
        "queue 1 gpu cuda 2 0 1 -",
        "queue 2 up copy 2 0 -1 -",
        "queue 3 down copy 2 0 -1 -",
        f"constant 0 1 0 {VECTOR_BYTES}",
        f"tensor 0 0 external - 2 32 {EXTENT}",
        f"tensor 1 0 arena 0 2 32 {EXTENT}",
        f"tensor 2 1 arena 0 2 32 {EXTENT}",
        f"tensor 3 1 constant 0 2 32 {EXTENT}",
        f"tensor 4 1 arena {VECTOR_BYTES} 2 32 {EXTENT}",
        f"tensor 5 0 arena {VECTOR_BYTES} 2 32 {EXTENT}",
        f"tensor 6 0 arena {2 * VECTOR_BYTES} 2 32 {EXTENT}",
        f"tensor 7 0 arena {3 * VECTOR_BYTES} 2 32 {EXTENT}",
        "input x 0",
        "output y 7",
        "output on_gpu 4",
        "kernel 0 twice",
        "kernel 1 add",
        "kernel 2 add_cuda",
        "call 0 0 0 1 0,1 -",
        "copy 2 1 1 2 0:1",
        "call 1 2 2 1 2,3,4 2:1",
        "copy 3 3 4 5 1:1",
        "call 0 4 1 1 0,1,6 -",
        "call 0 5 1 1 5,6,7 3:1",
        "end",
    ]
    return "\n".join(lines)


def test_cpu_and_gpu_share_one_program(cuda_library: str) -> None:
    blob = np.frombuffer(vector(9).tobytes(), "uint8").copy()
    executor = make_executor(cuda_library, mixed_program(), blob)
    for run in range(50):
        x = vector(run)
        executor.set_input("x", x)
        executor.run()
        on_gpu = 2 * x + 1 + vector(9)
        np.testing.assert_array_equal(executor.get_output("on_gpu"), on_gpu)
        np.testing.assert_array_equal(executor.get_output("y"), on_gpu + x + 2 * x + 1)


def test_timeline_of_a_mixed_program_respects_its_waits(cuda_library: str) -> None:
    blob = np.frombuffer(vector(9).tobytes(), "uint8").copy()
    executor = make_executor(cuda_library, mixed_program(), blob)
    executor.set_input("x", vector(0))
    executor.run()
    start_ns, finish_ns = executor.run_timed()
    assert (finish_ns >= start_ns).all()
    by_step = {i.step: k for k, i in enumerate(executor.instructions)}
    # Clocks of device and host are tied to within the time that an event's wait takes.
    tolerance_ns = 100_000
    for before, after in ((0, 1), (1, 2), (2, 3), (3, 5)):
        assert start_ns[by_step[after]] >= finish_ns[by_step[before]] - tolerance_ns


@pytest.mark.parametrize("seed", range(12))
def test_streams_of_one_gpu_equal_program_order(cuda_library: str, seed: int) -> None:
    writer = Writer(seed, ("cuda",) * (1 + seed % 4))
    text = writer.text(60).replace("kernel 0 add", "kernel 0 add_cuda")
    executor = make_executor(cuda_library, text.replace("kernel 1 twice", "kernel 1 twice_cuda"))
    executor.set_input("x0", vector(seed))
    executor.set_input("x1", vector(seed + 1))
    for run in range(10):
        executor.run() if run % 2 else executor.run_timed()
        for slot in range(NUM_SLOTS):
            np.testing.assert_array_equal(executor.get_output(f"y{slot}"), writer.values[slot])


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 6))]
)
def test_random_programs_over_a_core_and_gpus_equal_program_order(
    cuda_library: str, seed: int
) -> None:
    writer = MixedWriter(seed, (0, 1) if tvm.cuda(1).exist else (0,))
    executor = make_executor(cuda_library, writer.text(40), max_in_flight=3)
    requests = [executor.begin() for _ in range(3)]
    for request in requests:
        request.set_input("x0", writer.values[-2])
        request.set_input("x1", writer.values[-1])
    for _ in range(3):
        for request in requests:
            request.submit()
        for request in requests:
            writer.finish(request)
    for request in requests:
        request.close()


def test_cpu_kernel_on_gpu_memory_is_a_named_failure(cuda_library: str) -> None:
    text = write_program(("cuda",), ["call 0 5 1 1 8,0 -"], outputs=(0,))
    executor = make_executor(cuda_library, text)
    executor.set_input("x0", vector(0))
    for _ in range(3):
        with pytest.raises(ExecutionError, match=r"step 5 failed on queue 'q0' \(cuda:0\)"):
            executor.run()


def test_gpu_that_does_not_exist_is_named(cuda_library: str) -> None:
    text = (
        write_program(("cuda",), []).replace("ram 2 0", "ram 2 99").replace("cuda 2 0", "cuda 2 99")
    )
    with pytest.raises(ExecutionError, match=r"needs cuda:99; this machine has \d+ CUDA devices"):
        make_executor(cuda_library, text)


@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize(("text", "factor"), [(in_place, 1), (beside, 2)])
def test_sessions_that_take_turns_keep_their_state_on_the_gpu(
    cuda_library: str, text: Callable[[str], str], factor: int, cuda_graphs: bool
) -> None:
    program = text("cuda").replace("kernel 0 add", "kernel 0 add_cuda")
    # Three launches are issued as a graph.
    program = program.replace("call 0 0 0 1", "call 0 0 0 1 9,8,3 -\ncall 0 0 0 1", 1)
    executor = make_executor(cuda_library, program, cuda_graphs=cuda_graphs)
    sessions = [executor.session() for _ in range(2)]
    states = [np.zeros(EXTENT, "float32") for _ in sessions]
    for turn in range(10):
        number, x = turn // 2 % 2, vector(turn)
        np.testing.assert_array_equal(ask(executor, sessions[number], x), states[number] + x)
        states[number] = states[number] + factor * x
        np.testing.assert_array_equal(sessions[number].read("h"), states[number])
