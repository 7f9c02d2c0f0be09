"""Running programs: order, waits, teams, inputs and outputs, measurements."""

from __future__ import annotations

import threading
from pathlib import Path

import executor_programs as programs
import numpy as np
import pytest
import tvm
from executor_programs import (
    EXTENT,
    VECTOR_BYTES,
    make_executor,
    needs_two_cores,
    vector,
    write_program,
)
from tvm import te

from heteroplace.errors import ArtifactError, ExecutionError
from heteroplace.model.memory_use.memory import MemoryUse
from heteroplace.native.execute import Executor

pytestmark = pytest.mark.timeout(60)

ADD, TWICE = 0, 1
"""Ids of the kernels."""


def test_sequence_on_one_core(library: str) -> None:
    calls = ["call 0 0 1 1 8,0 -", "call 0 1 0 1 0,8,1 -", "call 0 2 0 1 1,0,2 -"]
    executor = make_executor(library, write_program(("cpu",), calls, outputs=(2,)))
    executor.set_input("x0", vector(1))
    executor.run()
    x = vector(1)
    np.testing.assert_array_equal(executor.get_output("y0"), (2 * x + 1 + x) + (2 * x + 1))


@needs_two_cores
def test_two_cores_wait_for_each_other(library: str) -> None:
    calls = [
        "call 0 0 1 1 8,0 -",
        "call 1 1 1 1 9,1 -",
        "call 0 2 0 1 0,1,2 1:1",
        "call 1 3 0 1 2,1,3 0:2",
    ]
    text = write_program(("cpu", "cpu"), calls, num_inputs=2, outputs=(2, 3))
    executor = make_executor(library, text)
    for run in range(20):
        x, y = vector(run), vector(run + 100)
        executor.set_input("x0", x)
        executor.set_input("x1", y)
        executor.run()
        total = (2 * x + 1) + (2 * y + 1)
        np.testing.assert_array_equal(executor.get_output("y0"), total)
        np.testing.assert_array_equal(executor.get_output("y1"), total + 2 * y + 1)


def test_buffer_is_reused_only_after_its_reader(library: str) -> None:
    # Slot 0 is read by the slow queue 1 and then overwritten by queue 0, which waits for that.
    calls = [
        "call 0 0 1 1 8,0 -",
        "call 1 1 1 1 0,1 0:1",
        "copy 0 2 9 0 1:1",
        "call 0 3 0 1 0,1,2 -",
    ]
    text = write_program(("fake:0", "fake:300000"), calls, num_inputs=2, outputs=(2,))
    executor = make_executor(library, text)
    executor.set_input("x0", vector(1))
    executor.set_input("x1", vector(2))
    executor.run()
    np.testing.assert_array_equal(
        executor.get_output("y0"), vector(2) + 2 * (2 * vector(1) + 1) + 1
    )


def test_missing_wait_shows_on_an_asynchronous_queue(library: str) -> None:
    # The fake device really is asynchronous: without its wait the reader sees the arena's zeros.
    calls = ["call 0 0 1 1 8,0 -", "call 1 1 1 1 0,1 -"]
    text = write_program(("fake:0", "fake:0"), ["copy 0 0 8 2 -", *calls], outputs=(1,))
    text = text.replace("q0 fake 1 0 0 0", "q0 fake 1 0 0 50000000")
    executor = make_executor(library, text)
    executor.set_input("x0", vector(1))
    executor.run()
    np.testing.assert_array_equal(executor.get_output("y0"), np.ones(EXTENT, "float32"))


def team_program(num_calls: int) -> str:
    """Sums of the rows of a matrix by a team of two, over and over."""
    text = [
        "heteroplace-program 1",
        "space 0 ram 1 0 256",
        "queue 0 lead cpu 1 0 0 0",
        "queue 1 help cpu 1 0 0 1",
        f"tensor 0 0 external - 2 32 64,{EXTENT}",
        "tensor 1 0 arena 0 2 32 64",
        "input rows 0",
        "output sums 1",
        "kernel 0 row_sums",
    ]
    for i in range(num_calls):
        text += [f"call 0 {i} 0 2 0,1 -", f"join 1 {i} 0 {i} -"]
    return "\n".join([*text, "end"])


@needs_two_cores
def test_team_of_two_equals_one_core(library: str) -> None:
    executor = make_executor(library, team_program(50))
    rows = np.random.default_rng(3).standard_normal((64, EXTENT)).astype("float32")
    executor.set_input("rows", rows)
    single = programs.build_module(parallel=False)
    expected = tvm.nd.empty((64,))
    single["row_sums"](tvm.nd.array(rows), expected)
    for _ in range(50):
        executor.run()
        np.testing.assert_array_equal(executor.get_output("sums"), expected.numpy())


@pytest.mark.costly
@needs_two_cores
def test_program_runs_bit_identically_a_thousand_times(library: str) -> None:
    calls = ["call 0 0 1 2 8,0 -", "join 1 0 0 0 -", "call 1 1 0 1 0,8,1 -"]
    calls += ["call 0 2 0 1 1,0,0 1:2"]
    executor = make_executor(library, write_program(("cpu", "cpu"), calls, outputs=(0,)))
    executor.set_input("x0", np.random.default_rng(0).standard_normal(EXTENT).astype("float32"))
    executor.run()
    first = executor.get_output("y0")
    out = np.empty_like(first)
    for _ in range(1000):
        executor.run()
        assert executor.get_output("y0", out).tobytes() == first.tobytes()


@pytest.mark.parametrize("order", [("tvm", ""), ("", "tvm")])
@pytest.mark.parametrize("closes_first", [0, 1])
def test_one_library_runs_with_and_without_tvm(
    library: str, order: tuple[str, str], closes_first: int
) -> None:
    text = write_program(("cpu",), ["call 0 0 1 1 8,0 -"], outputs=(0,))
    paths = [programs.libtvm_path() if name else "" for name in order]
    executors: list[Executor | None] = [Executor(path, library, text) for path in paths]
    for _ in range(3):
        for number, executor in enumerate(executors):
            if executor is not None:
                executor.set_input("x0", vector(number))
                executor.run()
                np.testing.assert_array_equal(executor.get_output("y0"), 2 * vector(number) + 1)
        executors[closes_first] = None  # the other one goes on


def test_kernels_in_memory_run_without_a_file(module: tvm.runtime.Module) -> None:
    text = write_program(("cpu",), ["call 0 0 1 1 8,0 -"], outputs=(0,))
    executor = Executor(programs.libtvm_path(), "", text, module_handle=module.handle.value)
    executor.set_input("x0", vector(1))
    executor.run()
    np.testing.assert_array_equal(executor.get_output("y0"), 2 * vector(1) + 1)


def test_kernels_in_memory_have_no_teams(module: tvm.runtime.Module) -> None:
    with pytest.raises(ArtifactError, match="no teams; export the module"):
        Executor(programs.libtvm_path(), "", team_program(1), module_handle=module.handle.value)


@pytest.mark.parametrize("shift", [0, 4])
def test_weights_are_read_from_the_blob(library: str, shift: int) -> None:
    # Shifted, the blob is not aligned for kernels and has to be copied.
    memory = np.zeros(4 * VECTOR_BYTES, "uint8")
    start = -memory.ctypes.data % 64 + shift
    blob = memory[start : start + 2 * VECTOR_BYTES]
    blob[VECTOR_BYTES:] = np.frombuffer(vector(5).tobytes(), "uint8")
    text = write_program(("cpu",), ["call 0 0 0 1 8,0,1 -"], outputs=(1,)).replace(
        f"tensor 0 0 arena 0 2 32 {EXTENT}",
        f"constant 0 0 {VECTOR_BYTES} {VECTOR_BYTES}\ntensor 0 0 constant 0 2 32 {EXTENT}",
    )
    executor = make_executor(library, text, blob)
    executor.set_input("x0", vector(1))
    executor.run()
    np.testing.assert_array_equal(executor.get_output("y0"), vector(1) + vector(5))


def test_short_blob_is_refused(library: str) -> None:
    text = write_program(("cpu",), []).replace(
        "tensor 0 ", f"constant 0 0 0 {VECTOR_BYTES}\ntensor 0 ", 1
    )
    with pytest.raises(ArtifactError, match=r"constant 0 ends at byte 1024 .* have 8 bytes"):
        make_executor(library, text, np.zeros(8, "uint8"))


@needs_two_cores
def test_library_with_barriers_runs_its_loops_serially(tmp_path: Path) -> None:
    # One launch goes through the outer loop, with a barrier after each round of the inner one.
    a = te.placeholder((64, EXTENT), name="a")
    c = te.compute((64, EXTENT), lambda i, j: a[i, j] * 2.0 + 2.0, name="c")
    schedule = te.create_schedule(c.op)
    outer, inner = schedule[c].split(c.op.axis[0], factor=8)
    schedule[c].parallel(inner)
    schedule[c].pragma(outer, "parallel_launch_point")
    schedule[c].pragma(inner, "parallel_stride_pattern")
    schedule[c].pragma(inner, "parallel_barrier_when_finish")
    kernel = tvm.build(schedule, [a, c], "llvm", name="row_sums")
    assert "__TVMBackendParallelBarrier" in kernel.get_source("ll")
    kernel.export_library(str(tmp_path / "barrier.so"))
    text = team_program(3).replace("arena 0 2 32 64", f"external - 2 32 64,{EXTENT}")
    executor = make_executor(str(tmp_path / "barrier.so"), text)
    rows = np.random.default_rng(0).standard_normal((64, EXTENT)).astype("float32")
    executor.set_input("rows", rows)
    for _ in range(20):
        executor.run()
        np.testing.assert_array_equal(executor.get_output("sums"), rows * 2 + 2)


def test_bool_and_scalar_tensors_pass_as_numpy_has_them(library: str) -> None:
    text = "\n".join(
        [
            "heteroplace-program 1",
            "space 0 ram 1 0 256",
            "queue 0 q0 cpu 1 0 0 0",
            f"tensor 0 0 external - 6 8 {EXTENT}",
            f"tensor 1 0 arena 0 1 1 {EXTENT}",
            "tensor 2 0 external - 0 64 -",
            "input flag 0",
            "input number 2",
            "output not 1",
            "output number 2",
            "kernel 0 invert",
            "call 0 0 0 1 0,1 -",
            "end",
        ]
    )
    executor = make_executor(library, text)
    flag = vector(1) > 0
    executor.set_input("flag", flag)
    executor.set_input("number", np.array(7))
    executor.run()
    result = executor.get_output("not")
    assert result.dtype == np.bool_
    np.testing.assert_array_equal(result, ~flag)
    assert executor.get_output("number")[()] == 7


@needs_two_cores
def test_executors_share_a_library(library: str) -> None:
    executors = [make_executor(library, team_program(3)) for _ in range(2)]
    rows = np.ones((64, EXTENT), "float32")
    # Loading the file anew points its loops back to TVM's own pool.
    tvm.runtime.load_module(library)
    for factor, executor in enumerate(executors):
        executor.set_input("rows", rows * factor)
    threads = [
        threading.Thread(target=lambda e=executor: [e.run() for _ in range(50)])
        for executor in executors
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for factor, executor in enumerate(executors):
        np.testing.assert_array_equal(executor.get_output("sums"), np.full(64, EXTENT * factor))


def test_kernel_called_by_a_foreign_thread_is_serial(library: str) -> None:
    executor = make_executor(library, write_program(("cpu",), ["call 0 0 1 1 8,0 -"]))
    executor.set_input("x0", vector(0))
    executor.run()
    loaded = tvm.runtime.load_module(library)
    executor.run()  # points the loops of the library to the executor's workers again
    result = tvm.nd.empty((EXTENT,))
    loaded["twice"](tvm.nd.array(vector(4)), result)
    np.testing.assert_array_equal(result.numpy(), 2 * vector(4) + 1)


def test_second_caller_waits_while_a_run_is_at_work(library: str) -> None:
    text = write_program(("fake:20000000",), ["copy 0 0 8 0 -"], outputs=(0,))
    executor = make_executor(library, text)
    executor.set_input("x0", vector(0))
    threads = [threading.Thread(target=executor.run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(executor.get_output("y0"), vector(0))


@pytest.mark.parametrize("queue", ["cpu", "fake:100000"])
def test_timed_run_gives_spans_in_queue_order(library: str, queue: str) -> None:
    calls = ["call 0 7 1 1 8,0 -", "copy 0 8 0 1 -", "call 0 9 0 1 1,0,2 -"]
    executor = make_executor(library, write_program((queue,), calls, outputs=(2,)))
    executor.set_input("x0", vector(0))
    start_ns, finish_ns = executor.run_timed()
    assert [(i.queue, i.position, i.step, i.kernel) for i in executor.instructions] == [
        (0, 0, 7, "twice"),
        (0, 1, 8, None),
        (0, 2, 9, "add"),
    ]
    assert start_ns[0] >= 0
    assert (finish_ns >= start_ns).all()
    assert (start_ns[1:] >= finish_ns[:-1]).all()
    np.testing.assert_array_equal(executor.get_output("y0"), 2 * (2 * vector(0) + 1))


def test_spans_of_a_waiting_instruction_begin_after_its_wait(library: str) -> None:
    calls = ["copy 0 0 8 0 -", "call 1 1 1 1 0,1 0:1"]
    executor = make_executor(library, write_program(("fake:2000000", "fake:0"), calls))
    executor.set_input("x0", vector(0))
    start_ns, finish_ns = executor.run_timed()
    # The two streams tie their clocks to the host's separately.
    assert start_ns[1] >= finish_ns[0] - 1_000_000


def test_profile_and_benchmark_have_one_entry_each(library: str) -> None:
    calls = ["call 0 0 1 1 8,0 -", "call 0 1 0 1 0,8,1 -"]
    executor = make_executor(library, write_program(("cpu",), calls))
    executor.set_input("x0", vector(0))
    assert executor.profile_runs(11).shape == (11, 2)
    assert (np.median(executor.profile_runs(5), axis=0) > 0).all()
    walls = executor.benchmark(9)
    assert walls.shape == (9,)
    assert (walls > 0).all()
    with pytest.raises(ExecutionError, match="number of runs is 0"):
        executor.benchmark(0)


def test_core_to_core_latency_needs_two_cpu_queues(library: str) -> None:
    assert make_executor(library, write_program(("cpu", "fake:0"), [])).core_to_core_ns() is None


@needs_two_cores
def test_core_to_core_latency_is_measured_between_two_cpu_queues(library: str) -> None:
    latency_ns = make_executor(library, write_program(("cpu", "cpu"), [])).core_to_core_ns()
    assert latency_ns is not None
    assert latency_ns > 0


def test_getters_describe_the_program(library: str) -> None:
    executor = make_executor(
        library, write_program(("cpu", "fake:0"), ["copy 0 0 8 3 -"], outputs=(3,))
    )
    assert executor.queues == ("q0", "q1")
    assert executor.outputs == (("y0", "float32", (EXTENT,)),)


def test_memory_is_told_in_whole_pages_and_by_purpose(library: str) -> None:
    executor = make_executor(library, write_program(("cpu",), [], num_slots=5))
    # Five vectors of 1 KiB in the arena; the input lies in a block of its own.
    assert executor.memory_bytes() == {"ram": MemoryUse(0, 8192 + 4096, 0)}


def test_executor_that_is_dropped_while_idle_takes_its_threads_along(library: str) -> None:
    before = num_threads()
    for _ in range(20):
        executor = make_executor(library, write_program(("cpu", "fake:0"), []))
        assert num_threads() > before
        executor.set_input("x0", vector(0))
        executor.run()
        del executor
    # A thread that has been joined may be listed for a moment longer.
    assert num_threads() < before + 20


def num_threads() -> int:
    """Of this process, those of the core too."""
    return len(list(Path("/proc/self/task").iterdir()))
