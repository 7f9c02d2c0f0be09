"""The executor on the fake CUDA: numbers, order, and what it may do when."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tvm
from cuda_library import build_cuda_library
from executor_programs import (
    EXTENT,
    VECTOR_BYTES,
    build_module,
    libtvm_path,
    make_executor,
    vector,
)
from mixed_programs import MixedWriter
from test_cuda_executor import mixed_program
from tvm import te

from heteroplace.errors import ArtifactError, ExecutionError
from heteroplace.native.compiled_file import CompiledFile
from heteroplace.native.execute import Executor
from heteroplace.tvm_bridge import register_cuda_compiler
from tests.compiled_files import NEEDS, PROGRAM, Parts, empty_library
from tests.fake_cuda.control import FakeCuda

pytestmark = pytest.mark.timeout(120)


def check(library: str, fake: FakeCuda, writer: MixedWriter, num_steps: int, runs: int) -> None:
    """Run a random program several times and compare every value."""
    text = writer.text(num_steps)
    executor = make_executor(library, text)
    executor.set_input("x0", writer.values[-2])
    executor.set_input("x1", writer.values[-1])
    for run in range(runs):
        fake.run(executor) if run % 2 == 0 else executor.run_timed()
        for slot in range(writer.num_slots):
            np.testing.assert_array_equal(
                executor.get_output(f"y{slot}"), writer.values[slot], err_msg=f"slot {slot}\n{text}"
            )


@pytest.mark.parametrize("gpus", [(0,), (0, 1), (1, 0), (1,)])
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 8), marks=pytest.mark.slow)])
def test_random_programs_equal_program_order(
    cuda_library: str, fake: FakeCuda, gpus: tuple[int, ...], seeds: range
) -> None:
    for seed in seeds:
        fake.set("delay_ns", 15_000 * (seed % 3))
        check(cuda_library, fake, MixedWriter(seed, gpus), num_steps=30, runs=3)


def test_nothing_is_left_when_an_executor_goes(cuda_library: str, fake: FakeCuda) -> None:
    before = fake.live()
    executor = make_executor(cuda_library, MixedWriter(3, (0, 1)).text(20))
    assert fake.live() != before
    del executor
    assert fake.live() == before


@pytest.mark.parametrize("current", [0, 1])
def test_the_caller_keeps_its_current_device(
    cuda_library: str, fake: FakeCuda, current: int
) -> None:
    fake.set_current_device(current)
    executor = make_executor(cuda_library, MixedWriter(5, (0, 1)).text(20))
    assert fake.current_device() == current
    executor.set_input("x0", vector(0))
    executor.set_input("x1", vector(1))
    executor.run_timed()
    executor.get_output("y4")
    assert fake.current_device() == current
    del executor
    assert fake.current_device() == current
    fake.set_current_device(0)


@pytest.mark.parametrize("gpus", [(0,), (0, 1)])
def test_the_caller_keeps_a_context_that_is_not_the_runtimes(
    cuda_library: str, fake: FakeCuda, gpus: tuple[int, ...]
) -> None:
    with fake.own_context(0) as context:
        check(cuda_library, fake, MixedWriter(5, gpus), num_steps=20, runs=2)
        assert fake.current_context() == context


def test_a_gpu_that_is_not_used_gets_no_context(cuda_library: str, fake: FakeCuda) -> None:
    def call() -> tuple[int | None, int]:
        check(cuda_library, fake, MixedWriter(5, (1,)), num_steps=20, runs=2)
        return fake.current_context(), fake.current_device()

    with ThreadPoolExecutor(1) as new_thread:  # which has called nothing of CUDA yet
        assert new_thread.submit(call).result() == (None, 0)
    assert [fake.has_context(device) for device in range(2)] == [False, True]


def test_only_pairs_that_copy_are_peers(cuda_library: str, fake: FakeCuda) -> None:
    fake.set("num_devices", 4)
    make_executor(cuda_library, MixedWriter(7, (0, 2)).text(20))
    assert fake.has_peer(0, 2)
    assert fake.has_peer(2, 0)
    assert not any(fake.has_peer(device, peer) for device in range(4) for peer in (1, 3))
    make_executor(cuda_library, MixedWriter(7, (1,)).text(20))
    assert not any(fake.has_peer(1, peer) for peer in range(4))


def test_gpus_without_peer_access_copy_all_the_same(cuda_library: str, fake: FakeCuda) -> None:
    fake.set("has_peers", 0)
    check(cuda_library, fake, MixedWriter(11, (0, 1)), num_steps=30, runs=2)
    assert "cudaDeviceEnablePeerAccess" not in fake.calls()


def test_gpus_that_take_no_more_peers_copy_all_the_same(cuda_library: str, fake: FakeCuda) -> None:
    fake.set("num_devices", 3)
    fake.set("max_peers", 1)
    fake.last_error()
    check(cuda_library, fake, MixedWriter(11, (0, 1, 2)), num_steps=40, runs=2)
    assert [fake.has_peer(0, peer) for peer in (1, 2)] == [True, False]
    assert fake.last_error() == 0


def test_refused_page_locking_changes_no_number(cuda_library: str, fake: FakeCuda) -> None:
    fake.set("can_pin", 0)
    before = fake.live()
    check(cuda_library, fake, MixedWriter(13, (0, 1)), num_steps=30, runs=3)
    assert fake.live() == before


def test_all_code_is_loaded_with_the_program(cuda_library: str, fake: FakeCuda) -> None:
    executor = make_executor(cuda_library, MixedWriter(17, (0, 1)).text(30))
    loaded = fake.calls()
    assert loaded["cuModuleLoadData"] == 2  # once for each GPU
    executor.set_input("x0", vector(0))
    executor.set_input("x1", vector(1))
    for _ in range(3):
        fake.run(executor)
    after = fake.calls()
    for function in ("cuModuleLoadData", "cuModuleGetFunction", "cuFuncLoad"):
        assert after[function] == loaded[function]
    assert after["cuLaunchKernel"] > 0


def test_a_run_calls_no_waiting_function_of_the_driver(cuda_library: str, fake: FakeCuda) -> None:
    # The rule itself is checked by the fake; this says that it was.
    fake.set("delay_ns", 300_000)
    blob = np.frombuffer(vector(9).tobytes(), "uint8").copy()
    executor = make_executor(cuda_library, mixed_program(), blob)
    executor.set_input("x", vector(0))
    fake.run(executor)
    calls = fake.calls()
    assert calls["cudaEventQuery"] > 10
    for function in ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy"):
        assert function not in calls


@pytest.mark.parametrize("num_bytes", [4, 1 << 20, (1 << 20) + 4, (5 << 20) + 64])
@pytest.mark.parametrize("can_pin", [1, 0])
def test_inputs_of_any_size_reach_the_device_and_come_back(
    cuda_library: str, fake: FakeCuda, num_bytes: int, can_pin: int
) -> None:
    fake.set("can_pin", can_pin)
    extent = num_bytes // 4
    lines = [
        "heteroplace-program 1",
        "space 0 gpu 2 1 64",
        "queue 0 gpu cuda 2 1 0 -",
        f"tensor 0 0 external - 2 32 {extent}",
        f"tensor 1 0 external - 2 32 {extent}",
        "input x 0",
        "output y 1",
        "copy 0 0 0 1 -",
        "end",
    ]
    executor = make_executor(cuda_library, "\n".join(lines))
    for seed in range(2):
        x = np.random.default_rng(seed).random(extent, "float32")
        executor.set_input("x", x)
        executor.run()
        np.testing.assert_array_equal(executor.get_output("y"), x)


def scratch_library(path: Path) -> str:
    """A kernel of two launches with scratch memory between them: y = (2x + 1) + x."""
    x = te.placeholder((EXTENT,), name="x")
    twice = te.compute((EXTENT,), lambda i: x[i] * 2.0 + 1.0, name="twice")
    y = te.compute((EXTENT,), lambda i: twice[EXTENT - 1 - i] + x[i], name="y")
    schedule = te.create_schedule(y.op)
    for stage in (twice, y):
        block, thread = schedule[stage].split(schedule[stage].op.axis[0], factor=64)
        schedule[stage].bind(block, te.thread_axis("blockIdx.x"))
        schedule[stage].bind(thread, te.thread_axis("threadIdx.x"))
    register_cuda_compiler()
    target = "cuda -arch=sm_80 -host=llvm"
    tvm.build(tvm.lower(schedule, [x, y], name="both"), target=target).export_library(str(path))
    return str(path)


def scratch_program(num_bytes: int, num_calls: int = 2) -> str:
    """Calls the kernel so often, on what it has made."""
    num_tensors = num_calls + 1
    return "\n".join(
        [
            "heteroplace-program 1",
            f"space 0 gpu 2 0 {num_tensors * VECTOR_BYTES}",
            "queue 0 gpu cuda 2 0 0 -",
            f"workspace 0 {num_bytes}",
            *(f"tensor {t} 0 arena {t * VECTOR_BYTES} 2 32 {EXTENT}" for t in range(num_tensors)),
            "input x 0",
            f"output y {num_calls}",
            "kernel 0 both",
            *(f"call 0 {c} 0 1 {c},{c + 1} -" for c in range(num_calls)),
            "end",
        ]
    )


def test_scratch_memory_is_planned_and_ours(tmp_path: Path, fake: FakeCuda) -> None:
    library = scratch_library(tmp_path / "scratch.so")
    executor = make_executor(library, scratch_program(VECTOR_BYTES))
    allocated = fake.calls()["cudaMalloc"]
    x = vector(4)
    executor.set_input("x", x)
    for _ in range(3):
        fake.run(executor)
    once = (2 * x + 1)[::-1] + x
    np.testing.assert_array_equal(executor.get_output("y"), (2 * once + 1)[::-1] + once)
    assert fake.calls()["cudaMalloc"] == allocated
    assert executor.memory_bytes()["gpu"].workspace_bytes == VECTOR_BYTES


def test_kernels_in_memory_are_refused(fake: FakeCuda) -> None:
    register_cuda_compiler()
    module = build_module(target="cuda -arch=sm_80 -host=llvm")
    module.import_module(build_module())
    text = MixedWriter(1, (0,)).text(10)
    before = fake.live()
    with pytest.raises(ArtifactError, match="kernels for GPUs cannot be run from a module in mem"):
        Executor(libtvm_path(), "", text, module_handle=module.handle.value)
    assert fake.live() == before


def test_machine_code_is_taken_where_it_fits(cuda_library: str, fake: FakeCuda) -> None:
    check(cuda_library, fake, MixedWriter(1, (0,)), num_steps=10, runs=1)
    assert fake.calls()["cuModuleLoadData"] == fake.machine_code_loads() == 1


def test_what_an_absent_gpu_has_is_asked_without_a_trace(tmp_path: Path, fake: FakeCuda) -> None:
    path = tmp_path / "model.so"
    needs = NEEDS.replace(b"code -", b"cuda 9 80\ncode -")
    parts = Parts(empty_library(), b"", needs, PROGRAM.encode(), b"{}")
    path.write_bytes(parts.sealed().to_bytes())
    fake.last_error()
    assert CompiledFile(path).missing() == []
    assert fake.last_error() == 0  # else the caller's next check would tell it


def test_code_for_a_later_gpu_is_taken_as_ptx_or_refused_with_the_mend(
    tmp_path: Path, fake: FakeCuda
) -> None:
    library = build_cuda_library(tmp_path / "kernels.so", "sm_86")
    check(library, fake, MixedWriter(1, (0,)), num_steps=10, runs=1)
    assert fake.machine_code_loads() == 0
    fake.fail("cuModuleLoadData", code=209)
    with pytest.raises(ArtifactError, match=r"cuda:0 \(compute capability 8.0\).*build the model"):
        make_executor(library, MixedWriter(1, (0,)).text(10))


def test_one_thread_issues_all_streams_of_a_gpu_in_one_order(
    cuda_library: str, fake: FakeCuda
) -> None:
    executor = make_executor(cuda_library, MixedWriter(29, (0, 1)).text(40))
    executor.set_input("x0", vector(0))
    executor.set_input("x1", vector(1))
    orders = set()
    for delay_ns in (0, 20_000, 100_000, 0):
        fake.set("delay_ns", delay_ns)
        fake.run(executor)
        issued = [fake.issued(device) for device in (0, 1)]
        assert [num_threads for num_threads, _ in issued] == [1, 1]
        orders.add(tuple(text for _, text in issued))
    (order,) = orders
    assert all(text.count("\n") > 20 for text in order)


def test_requests_in_flight_do_not_touch_each_other(cuda_library: str, fake: FakeCuda) -> None:
    writer = MixedWriter(23, (0, 1))
    executor = make_executor(cuda_library, writer.text(30), max_in_flight=3)
    inputs, expected = [], []
    for seed in range(3):
        other = MixedWriter(23, (0, 1))
        other.values[-2:] = vector(100 + seed), vector(200 + seed)
        inputs.append(other.values[-2:])
        other.text(30)
        expected.append(other.values)
    requests = [executor.begin() for _ in range(3)]
    for _ in range(3):
        for request, (x0, x1) in zip(requests, inputs, strict=True):
            request.set_input("x0", x0)
            request.set_input("x1", x1)
        with fake.running():
            for request in requests:
                request.submit()
            for request in requests:
                request.finish()
        for request, values in zip(requests, expected, strict=True):
            for slot in range(writer.num_slots):
                np.testing.assert_array_equal(request.get_output(f"y{slot}"), values[slot])
    for request in requests:
        request.close()


def test_a_failed_launch_fails_its_request_alone(cuda_library: str, fake: FakeCuda) -> None:
    writer = MixedWriter(23, (0, 1))
    executor = make_executor(cuda_library, writer.text(30), max_in_flight=3)
    requests = [executor.begin() for _ in range(3)]
    for request in requests:
        request.set_input("x0", writer.values[-2])
        request.set_input("x1", writer.values[-1])
    for _ in range(4):
        fake.fail("cuLaunchKernel", 9, 701)
        for request in requests:
            request.submit()
        failures = 0
        for request in requests:
            try:
                request.finish()
            except ExecutionError:
                failures += 1
                continue
            for slot in range(writer.num_slots):
                np.testing.assert_array_equal(request.get_output(f"y{slot}"), writer.values[slot])
        assert failures == 1
    for request in requests:
        request.close()


def test_a_kernel_that_never_ends_is_told_within_the_limit(
    cuda_library: str, fake: FakeCuda
) -> None:
    writer = MixedWriter(23, (0,))
    executor = make_executor(cuda_library, writer.text(10))
    executor.set_input("x0", writer.values[-2])
    executor.set_input("x1", writer.values[-1])
    fake.fail("kernel add_cuda_kernel", 0, -1)
    with pytest.raises(ExecutionError, match="did not end within its limit: a step does not end"):
        executor.run(timeout_s=0.3)
    fake.set("is_released", 1)
