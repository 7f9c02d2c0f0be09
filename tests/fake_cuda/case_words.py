"""Waits of cores and GPUs by words in pinned memory, CUDA graphs, and devices that are lost."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from executor_programs import EXTENT, VECTOR_BYTES, make_executor, vector
from mixed_programs import MixedWriter
from test_cuda_executor import mixed_program

from heteroplace.errors import ExecutionError
from heteroplace.native.execute import Executor
from tests.fake_cuda.case_executor import scratch_library, scratch_program
from tests.fake_cuda.control import FakeCuda

pytestmark = pytest.mark.timeout(120)

WAIT, WRITE = "cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2"


def run_checked(executor: Executor, writer: MixedWriter, fake: FakeCuda, runs: int = 2) -> None:
    """Run some times under the rules of a run, and compare every value."""
    executor.set_input("x0", writer.values[-2])
    executor.set_input("x1", writer.values[-1])
    for _ in range(runs):
        fake.run(executor)
        for slot in range(writer.num_slots):
            np.testing.assert_array_equal(executor.get_output(f"y{slot}"), writer.values[slot])


@pytest.mark.parametrize(
    ("gpus", "streams_wait", "cores_wait"), [((0,), True, True), ((0, 1), False, True)]
)
def test_cores_and_gpus_wait_by_words(
    cuda_library: str, fake: FakeCuda, gpus: tuple[int, ...], streams_wait: bool, cores_wait: bool
) -> None:
    # Where there are two GPUs the threads that issue wait for cores: see ProgressTable.
    fake.set("delay_ns", 100_000)
    writer = MixedWriter(31, gpus)
    run_checked(make_executor(cuda_library, writer.text(40)), writer, fake)
    calls = fake.calls()
    assert (WAIT in calls) is streams_wait
    assert (WRITE in calls) is cores_wait


@pytest.mark.parametrize("missing", ["has_words", "can_pin", "option"])
def test_without_words_events_do(cuda_library: str, fake: FakeCuda, missing: str) -> None:
    if missing != "option":
        fake.set(missing, 0)
    writer = MixedWriter(31, (0,))
    options = {"cuda_words": missing != "option"}
    run_checked(make_executor(cuda_library, writer.text(40), **options), writer, fake)
    assert not {WAIT, WRITE} & set(fake.calls())


@pytest.mark.parametrize("seed", [1, 3, 4, 7])
def test_copies_of_memory_that_is_not_pinned_wait_on_the_host(
    cuda_library: str, fake: FakeCuda, seed: int
) -> None:
    # The words are pinned, and the arena of the host, which is larger, is not.
    fake.set("max_registered_bytes", 1 << 16)
    fake.set("delay_ns", 100_000)
    writer = MixedWriter(seed, (0,))
    text, num_arenas = re.subn(r"^(space 0 .*) \d+$", rf"\1 {1 << 20}", writer.text(40), flags=re.M)
    assert num_arenas == 1
    run_checked(make_executor(cuda_library, text), writer, fake, runs=5)
    # No stream waits for the core, whose values CUDA would read before: see Worker::Await.
    assert WRITE in fake.calls() and WAIT not in fake.calls()


@pytest.mark.parametrize("function", [WAIT, WRITE])
def test_a_word_that_cannot_be_used_fails_its_request(
    cuda_library: str, fake: FakeCuda, function: str
) -> None:
    fake.set("delay_ns", 100_000)
    writer = MixedWriter(31, (0,))
    executor = make_executor(cuda_library, writer.text(40))
    executor.set_input("x0", writer.values[-2])
    executor.set_input("x1", writer.values[-1])
    fake.fail(function, code=2)
    with pytest.raises(
        ExecutionError, match=rf"step \d+ .*{function[:-3]} on cuda:0.*CUDA error 2"
    ):
        executor.run()
    run_checked(executor, writer, fake)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_one_queue_of_the_hardware_is_enough(cuda_library: str, fake: FakeCuda, seed: int) -> None:
    # All streams in one queue: whatever waits there holds up all that was issued after it.
    fake.set("has_one_channel", 1)
    fake.set("delay_ns", 0)
    writers = [MixedWriter(40 + 2 * seed + i, (0,)) for i in range(2)]
    executors = [make_executor(cuda_library, w.text(40), max_in_flight=3) for w in writers]
    requests = []
    for _ in range(3):
        for executor, writer in zip(executors, writers, strict=True):
            request = executor.begin()
            request.set_input("x0", writer.values[-2])
            request.set_input("x1", writer.values[-1])
            requests.append((request, writer))
    for request, _ in requests:
        request.submit()
    for request, writer in requests:
        writer.finish(request)
        request.close()


def test_requests_that_are_cancelled_hold_up_no_stream(cuda_library: str, fake: FakeCuda) -> None:
    fake.set("delay_ns", 50_000)
    writer = MixedWriter(23, (0,))
    executor = make_executor(cuda_library, writer.text(30), max_in_flight=3)
    for cancelled in range(6):
        requests = [executor.begin() for _ in range(3)]
        for request in requests:
            request.set_input("x0", writer.values[-2])
            request.set_input("x1", writer.values[-1])
            request.submit()
        requests[cancelled % 3].cancel("not needed")
        for number, request in enumerate(requests):
            try:
                request.finish()
            except ExecutionError as error:
                assert "not needed" in str(error)
                assert number == cancelled % 3
            else:
                for slot in range(writer.num_slots):
                    np.testing.assert_array_equal(
                        request.get_output(f"y{slot}"), writer.values[slot]
                    )
            request.close()


def chain_program(length: int) -> str:
    """x -> core: 2x+1 -> GPU: doubled so often -> core: 2(...)+1; the GPU has one wait."""
    lines = [
        "heteroplace-program 1",
        f"space 0 ram 1 0 {3 * VECTOR_BYTES}",
        f"space 1 gpu0 2 0 {2 * VECTOR_BYTES}",
        "queue 0 cpu cpu 1 0 0 0",
        "queue 1 gpu cuda 2 0 1 -",
        "queue 2 wires copy 2 0 -1 -",
        f"tensor 0 0 external - 2 32 {EXTENT}",
        *(f"tensor {1 + t} 0 arena {t * VECTOR_BYTES} 2 32 {EXTENT}" for t in range(3)),
        *(f"tensor {4 + t} 1 arena {t * VECTOR_BYTES} 2 32 {EXTENT}" for t in range(2)),
        "input x 0",
        "output y 3",
        "kernel 0 twice",
        "kernel 1 twice_cuda",
        "call 0 0 0 1 0,1 -",
        "copy 2 1 1 4 0:1",
        *(
            f"call 1 {2 + i} 1 1 {4 + i % 2},{5 - i % 2} {'2:1' if i == 0 else '-'}"
            for i in range(length)
        ),
        f"copy 2 {2 + length} {4 + length % 2} 2 1:{length}",
        f"call 0 {3 + length} 0 1 2,3 2:2",
        "end",
    ]
    return "\n".join(lines)


def chain_value(x: np.ndarray, length: int) -> np.ndarray:
    for _ in range(length + 2):
        x = 2 * x + 1
    return x


@pytest.mark.parametrize(("length", "launches"), [(6, 0), (2, 2)])
def test_kernels_without_a_wait_between_are_one_graph(
    cuda_library: str, fake: FakeCuda, length: int, launches: int
) -> None:
    before = fake.live()
    executor = make_executor(cuda_library, chain_program(length), max_in_flight=2, cuda_graphs=True)
    loaded = fake.calls()
    assert fake.live().graphs == (launches == 0)
    for run in range(3):
        x = vector(run)
        executor.set_input("x", x)
        fake.run(executor)
        np.testing.assert_array_equal(executor.get_output("y"), chain_value(x, length))
    calls = fake.calls()
    assert calls["cuLaunchKernel"] - loaded.get("cuLaunchKernel", 0) == 3 * launches
    assert calls.get("cudaGraphLaunch", 0) == (3 if launches == 0 else 0)
    # Times of single kernels need launches of their own.
    executor.run_timed()
    np.testing.assert_array_equal(executor.get_output("y"), chain_value(vector(2), length))
    assert fake.calls()["cuLaunchKernel"] - calls["cuLaunchKernel"] == length
    # Each slot has addresses of its own, and so a graph.
    requests = [executor.begin() for _ in range(2)]
    for seed, request in enumerate(requests):
        request.set_input("x", vector(10 + seed))
        request.submit()
    for seed, request in enumerate(requests):
        request.finish()
        expected = chain_value(vector(10 + seed), length)
        np.testing.assert_array_equal(request.get_output("y"), expected)
        request.close()
    assert fake.live().graphs == (2 if launches == 0 else 0)
    del request, requests, executor
    assert fake.live() == before


@pytest.mark.parametrize(
    "function",
    [
        "cudaStreamBeginCapture",
        "cuLaunchKernel",
        "cudaStreamEndCapture",
        "cudaGraphInstantiateWithFlags",
        "cudaGraphUpload",
    ],
)
def test_a_graph_that_cannot_be_made_fails_the_load(
    cuda_library: str, fake: FakeCuda, function: str
) -> None:
    before = fake.live()
    fake.fail(function, code=2)
    with pytest.raises(ExecutionError, match=r"step \d+ failed on queue 'gpu' .*CUDA error 2"):
        make_executor(cuda_library, chain_program(6), cuda_graphs=True)
    assert fake.live() == before


def test_a_graph_whose_launch_fails_fails_its_request(cuda_library: str, fake: FakeCuda) -> None:
    executor = make_executor(cuda_library, chain_program(6), cuda_graphs=True)
    executor.set_input("x", vector(1))
    fake.fail("cudaGraphLaunch", code=2)
    with pytest.raises(ExecutionError, match=r"step 2 failed .*cudaGraphLaunch on cuda:0: out of"):
        executor.run()
    fake.run(executor)
    np.testing.assert_array_equal(executor.get_output("y"), chain_value(vector(1), 6))


def test_scratch_memory_that_the_program_does_not_tell_of_is_refused_in_graphs(
    tmp_path: Path, fake: FakeCuda
) -> None:
    # What is not reserved would be taken during the capture, and moved by later launches.
    library = scratch_library(tmp_path / "scratch.so")
    text = scratch_program(VECTOR_BYTES, num_calls=3)
    executor = make_executor(library, text, cuda_graphs=True)
    executor.set_input("x", vector(1))
    fake.run(executor)
    assert fake.calls()["cudaGraphLaunch"] == 1
    expected = vector(1)
    for _ in range(3):
        expected = (2 * expected + 1)[::-1] + expected
    np.testing.assert_array_equal(executor.get_output("y"), expected)
    before = fake.live()
    with pytest.raises(ExecutionError, match="CUDA error 900"):
        make_executor(library, scratch_program(0, num_calls=3), cuda_graphs=True)
    assert "cudaMalloc: not allowed while a stream is captured" in fake.reports()
    assert fake.live() == before


def test_after_a_fault_of_the_device_all_calls_are_refused_with_the_reason(
    cuda_library: str, fake: FakeCuda
) -> None:
    blob = np.frombuffer(vector(9).tobytes(), "uint8").copy()
    executor = make_executor(cuda_library, mixed_program(), blob)
    executor.set_input("x", vector(0))
    fake.fail("kernel add_cuda_kernel", 0, 700)
    with pytest.raises(ExecutionError, match="CUDA error 700"):
        executor.run()
    refused = r"cannot be used any more, a device is lost: .*cuda:0.*CUDA error 700.*new process"
    for call in (executor.run, executor.begin, executor.run_timed):
        with pytest.raises(ExecutionError, match=refused):
            call()


@pytest.mark.parametrize("cuda_words", [True, False])
def test_a_late_fault_names_the_steps_after_the_last_that_was_reached(
    cuda_library: str, fake: FakeCuda, cuda_words: bool
) -> None:
    # Steps 2 to 7 are the GPU's kernels, of which the core waits for the third; the fifth fails.
    last = "call 0 9 0 1 2,3 2:2"
    text = chain_program(6).replace(last, "copy 0 4 1 3 1:3\n" + last)
    executor = make_executor(cuda_library, text, cuda_words=cuda_words)
    executor.set_input("x", vector(1))
    executor.run()
    fake.set("delay_ns", 100_000_000)  # a core that looks at events has time to
    fake.fail("kernel twice_cuda_kernel", 4, 700)
    where = (
        r"one of steps 5 \(kernel 'twice_cuda'\) to 7 \(kernel 'twice_cuda'\) of queue 'gpu', or"
    )
    with pytest.raises(ExecutionError, match=f"a step failed on cuda:0, {where}.*CUDA error 700"):
        executor.run()


def test_a_fault_is_told_to_a_core_that_waits_for_a_word(cuda_library: str, fake: FakeCuda) -> None:
    # The thread that issues for the other GPU waits for that core: nobody has ended its part.
    writer = MixedWriter(37, (0, 1))
    executor = make_executor(cuda_library, writer.text(40))
    executor.set_input("x0", writer.values[-2])
    executor.set_input("x1", writer.values[-1])
    fake.fail("kernel twice_cuda_kernel", 1, 700)
    with pytest.raises(ExecutionError, match="CUDA error 700"):
        executor.run(timeout_s=30)
