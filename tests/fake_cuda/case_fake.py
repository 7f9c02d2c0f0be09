"""The fake itself: what it must notice, so that the other cases can fail."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from executor_programs import VECTOR_BYTES

from heteroplace.tvm_bridge import register_cuda_compiler
from tests.fake_cuda.build import compile_for_fake
from tests.fake_cuda.control import NAME, FakeCuda

tvm = pytest.importorskip("tvm")
from tvm import te  # noqa: E402

pytestmark = pytest.mark.timeout(60)

CUDA = ctypes.CDLL(NAME)
HOST_TO_DEVICE = 1


def made(function: str, *arguments: int) -> ctypes.c_void_p:
    """The object that a function returns through its first argument."""
    out = ctypes.c_void_p()
    assert CUDA[function](ctypes.byref(out), *arguments) == 0
    return out


def copy(dst: int, src: int, num_bytes: int, stream: ctypes.c_void_p) -> int:
    """Copy asynchronously."""
    sizes = (ctypes.c_void_p(dst), ctypes.c_void_p(src), ctypes.c_size_t(num_bytes))
    return int(CUDA.cudaMemcpyAsync(*sizes, HOST_TO_DEVICE, stream))


@pytest.fixture
def stream(fake: FakeCuda) -> Iterator[ctypes.c_void_p]:
    """A stream of device 0."""
    fake.set_current_device(0)
    stream = made("cudaStreamCreateWithFlags", 1)
    yield stream
    assert CUDA.cudaStreamDestroy(stream) == 0


def test_work_is_done_late_and_in_order(fake: FakeCuda, stream: ctypes.c_void_p) -> None:
    fake.set("delay_ns", 50_000_000)
    pinned, memory = made("cudaMallocHost", 8), made("cudaMalloc", 8)
    assert pinned.value and memory.value
    words = (ctypes.c_int64 * 1).from_address(pinned.value)
    words[0] = 1
    assert copy(memory.value, pinned.value, 8, stream) == 0
    assert CUDA.cudaStreamQuery(stream) == 600
    words[0] = 2  # too early: the copy takes what is there when its turn comes
    assert CUDA.cudaStreamSynchronize(stream) == 0
    assert (ctypes.c_int64 * 1).from_address(memory.value)[0] == 2
    CUDA.cudaFree(memory)
    CUDA.cudaFreeHost(pinned)


def test_copies_outside_of_memory_are_reported(fake: FakeCuda, stream: ctypes.c_void_p) -> None:
    pinned, memory = made("cudaMallocHost", 16), made("cudaMalloc", 8)
    assert pinned.value and memory.value
    assert copy(memory.value, pinned.value, 16, stream) == 1
    assert "target passes the end of its memory" in fake.reports()
    CUDA.cudaFree(memory)
    assert CUDA.cudaMemcpyPeerAsync(pinned, 0, pinned, 1, ctypes.c_size_t(8), stream) == 1
    assert "memory of another device" in fake.reports()
    CUDA.cudaFreeHost(pinned)


def test_memory_given_back_under_pending_work_is_reported(
    fake: FakeCuda, stream: ctypes.c_void_p
) -> None:
    fake.set("delay_ns", 20_000_000)
    pinned, memory = made("cudaMallocHost", 8), made("cudaMalloc", 8)
    assert pinned.value and memory.value
    assert copy(memory.value, pinned.value, 8, stream) == 0
    CUDA.cudaFree(memory)
    assert "cudaFree: work of the device is pending" in fake.reports()
    assert CUDA.cudaFree(memory) == 1
    assert "cudaFree: memory that cudaMalloc has not given" in fake.reports()
    CUDA.cudaFreeHost(pinned)


def test_memory_goes_back_as_soon_as_the_last_event_is_reached(
    fake: FakeCuda, stream: ctypes.c_void_p
) -> None:
    # Whoever has seen the last event of a stream knows that nothing is pending.
    fake.set("delay_ns", 0)
    event = made("cudaEventCreateWithFlags", 2)
    for _ in range(50):
        memory = made("cudaMalloc", 8)
        assert CUDA.cudaEventRecord(event, stream) == 0
        while CUDA.cudaEventQuery(event) == 600:
            pass
        assert CUDA.cudaFree(memory) == 0
    assert not fake.reports()
    CUDA.cudaEventDestroy(event)


def test_writes_beside_memory_are_reported(fake: FakeCuda) -> None:
    memory = made("cudaMalloc", 8)
    assert memory.value
    (ctypes.c_char * 1).from_address(memory.value + 8)[0] = b"x"
    CUDA.cudaFree(memory)
    assert "memory beside an allocation of 8 bytes" in fake.reports()


def test_events_are_recorded_before_they_are_awaited_and_on_their_device(
    fake: FakeCuda, stream: ctypes.c_void_p
) -> None:
    event = made("cudaEventCreateWithFlags", 2)
    CUDA.cudaStreamWaitEvent(stream, event, 0)
    assert "the event was never recorded" in fake.reports()
    fake.set_current_device(1)
    other = made("cudaEventCreateWithFlags", 2)
    assert CUDA.cudaEventRecord(other, stream) == 400
    assert "an event of another device" in fake.reports()
    fake.set_current_device(0)
    assert CUDA.cudaEventDestroy(event) == CUDA.cudaEventDestroy(other) == 0
    assert CUDA.cudaEventQuery(event) == 400
    assert "an event that does not live" in fake.reports()


def test_page_locking_is_paired(fake: FakeCuda) -> None:
    array = np.zeros(4096, "uint8")
    data, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(4096)
    assert CUDA.cudaHostRegister(data, size, 1) == 0
    assert CUDA.cudaHostRegister(data, size, 1) == 712
    assert "part of the memory is registered" in fake.reports()
    assert CUDA.cudaHostUnregister(data) == 0
    assert CUDA.cudaHostUnregister(data) == 713
    assert "memory that is not registered" in fake.reports()


def test_blocking_in_a_run_is_reported_but_not_of_its_caller(
    fake: FakeCuda, stream: ctypes.c_void_p
) -> None:
    with fake.running():
        CUDA.cudaStreamSynchronize(stream)
        assert not fake.reports()
        worker = threading.Thread(target=lambda: CUDA.cudaStreamSynchronize(stream))
        worker.start()
        worker.join()
        assert "a worker blocks in the driver" in fake.reports()
        memory = made("cudaMalloc", 8)
        worker = threading.Thread(target=lambda: CUDA.cudaFree(memory))
        worker.start()
        worker.join()
        assert "memory or code changes" in fake.reports()


def test_a_captured_stream_keeps_the_rules(fake: FakeCuda, stream: ctypes.c_void_p) -> None:
    pinned, memory = made("cudaMallocHost", 8), made("cudaMalloc", 8)
    assert pinned.value and memory.value
    words = (ctypes.c_int64 * 1).from_address(pinned.value)
    words[0] = 1
    assert CUDA.cudaStreamBeginCapture(stream, 0) == 0
    assert copy(memory.value, pinned.value, 8, stream) == 0
    graph = made_by("cudaStreamEndCapture", stream)
    executable, no_flags = ctypes.c_void_p(), ctypes.c_uint64(0)
    assert CUDA.cudaGraphInstantiateWithFlags(ctypes.byref(executable), graph, no_flags) == 0
    for value in (2, 3):  # nothing was done by the capture, everything by each launch
        words[0] = value
        assert CUDA.cudaGraphLaunch(executable, stream) == 0
        assert CUDA.cudaStreamSynchronize(stream) == 0
        assert (ctypes.c_int64 * 1).from_address(memory.value)[0] == value
    assert CUDA.cudaGraphExecDestroy(executable) == CUDA.cudaGraphDestroy(graph) == 0
    for act in (
        lambda: CUDA.cudaStreamSynchronize(stream),
        lambda: CUDA.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(8)),
    ):
        assert CUDA.cudaStreamBeginCapture(stream, 0) == 0
        assert act() == 900
        assert "not allowed while a stream is captured" in fake.reports()
        assert CUDA.cudaStreamEndCapture(stream, ctypes.byref(ctypes.c_void_p())) == 901
    event = made("cudaEventCreateWithFlags", 2)
    assert CUDA.cudaStreamBeginCapture(stream, 0) == 0
    assert CUDA.cudaStreamWaitEvent(stream, event, 0) == 905
    assert "a captured stream waits for work outside" in fake.reports()
    assert CUDA.cudaStreamEndCapture(stream, ctypes.byref(ctypes.c_void_p())) == 901
    CUDA.cudaEventDestroy(event)
    CUDA.cudaFree(memory)
    CUDA.cudaFreeHost(pinned)


def test_a_capture_of_one_thread_leaves_others_alone(
    fake: FakeCuda, stream: ctypes.c_void_p
) -> None:
    this_thread = 1
    assert CUDA.cudaStreamBeginCapture(stream, this_thread) == 0
    worker = threading.Thread(target=lambda: CUDA.cudaFree(made("cudaMalloc", 8)))
    worker.start()
    worker.join()
    assert not fake.reports()
    assert CUDA.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(8)) == 900
    assert "not allowed while a stream is captured" in fake.reports()
    assert CUDA.cudaStreamEndCapture(stream, ctypes.byref(ctypes.c_void_p())) == 901


@pytest.mark.parametrize("has_one_channel", [0, 1])
def test_a_stream_that_waits_for_a_word_holds_up_what_shares_its_channel(
    fake: FakeCuda, stream: ctypes.c_void_p, has_one_channel: int
) -> None:
    fake.set("delay_ns", 0)
    fake.set("has_one_channel", has_one_channel)
    other, pinned = made("cudaStreamCreateWithFlags", 1), made("cudaMallocHost", 8)
    assert pinned.value
    word = (ctypes.c_uint32 * 2).from_address(pinned.value)
    word[0], word[1] = 2**32 - 1, 0  # which is before 1: words wrap around
    address, beside = ctypes.c_uint64(pinned.value), ctypes.c_uint64(pinned.value + 4)
    assert CUDA.cuStreamWaitValue32_v2(stream, address, 1, 0) == 0
    assert CUDA.cuStreamWriteValue32_v2(other, beside, 7, 0) == 0
    if not has_one_channel:
        assert CUDA.cudaStreamSynchronize(other) == 0
    assert CUDA.cudaStreamQuery(stream) == 600
    assert word[1] == (0 if has_one_channel else 7)
    word[0] = 1
    assert CUDA.cudaStreamSynchronize(stream) == CUDA.cudaStreamSynchronize(other) == 0
    assert word[1] == 7
    assert CUDA.cudaStreamDestroy(other) == 0
    CUDA.cudaFreeHost(pinned)


def made_by(function: str, argument: ctypes.c_void_p) -> ctypes.c_void_p:
    """The object that a function returns through its last argument."""
    out = ctypes.c_void_p()
    assert CUDA[function](argument, ctypes.byref(out)) == 0
    return out


def test_a_kernel_that_reads_memory_of_nobody_faults(fake: FakeCuda) -> None:
    code = 'extern "C" __global__ void k(float* __restrict__ a) { a[threadIdx.x] = 1; }'
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert CUDA.cuModuleLoadData(ctypes.byref(module), compile_for_fake(code, "sm_80")[0]) == 0
    assert CUDA.cuModuleGetFunction(ctypes.byref(function), module, b"k") == 0
    stream, memory = made("cudaStreamCreateWithFlags", 1), made("cudaMalloc", VECTOR_BYTES)

    def launch() -> int:
        argument = ctypes.c_void_p(memory.value)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        extents = (1, 1, 1, 4, 1, 1, 0)
        return int(CUDA.cuLaunchKernel(function, *extents, stream, arguments, None))

    assert launch() == 0
    assert CUDA.cudaStreamSynchronize(stream) == 0
    fake.set_current_device(1)
    assert launch() == 400
    assert "the stream is not of the current device" in fake.reports()
    fake.set_current_device(0)
    CUDA.cudaFree(memory)
    assert launch() == 0
    assert CUDA.cudaStreamSynchronize(stream) == 700
    assert "argument 0 of kernel k is in no live memory" in fake.reports()
    assert CUDA.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(8)) == 700
    fake.reset()
    CUDA.cudaStreamDestroy(stream)
    CUDA.cuModuleUnload(module)


def test_threads_of_a_block_meet() -> None:
    # Sums by shuffles of a warp and by shared memory, as TVM writes them.
    register_cuda_compiler()
    x = te.placeholder((6, 96), name="x")
    k = te.reduce_axis((0, 96), name="k")
    sums = te.compute((6,), lambda i: te.sum(x[i, k], axis=k), name="sums")
    for num_threads in (32, 64):
        schedule = te.create_schedule(sums.op)
        _, inner = schedule[sums].split(sums.op.reduce_axis[0], factor=num_threads)
        schedule[sums].bind(sums.op.axis[0], te.thread_axis("blockIdx.x"))
        schedule[sums].bind(inner, te.thread_axis("threadIdx.x"))
        kernel = tvm.build(schedule, [x, sums], target="cuda -arch=sm_80 -host=llvm")
        values = np.arange(6 * 96, dtype="float32").reshape(6, 96)
        there, result = tvm.nd.array(values, tvm.cuda(0)), tvm.nd.empty((6,), device=tvm.cuda(0))
        kernel(there, result)
        np.testing.assert_array_equal(result.numpy(), values.sum(axis=1))


def test_threads_that_meet_at_different_places_are_reported(
    fake: FakeCuda, stream: ctypes.c_void_p
) -> None:
    code = """
    extern "C" __global__ void k(float* __restrict__ a) {
      if (threadIdx.x < 2) { __syncthreads(); a[0] = 1; } else { a[1] = 2; __syncthreads(); }
    }"""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert CUDA.cuModuleLoadData(ctypes.byref(module), compile_for_fake(code, "sm_80")[0]) == 0
    assert CUDA.cuModuleGetFunction(ctypes.byref(function), module, b"k") == 0
    memory = made("cudaMalloc", VECTOR_BYTES)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
    extents = (1, 1, 1, 4, 1, 1, 0)
    assert CUDA.cuLaunchKernel(function, *extents, stream, arguments, None) == 0
    assert CUDA.cudaStreamSynchronize(stream) == 0
    assert "meet at different places" in fake.reports()
    CUDA.cudaFree(memory)
    CUDA.cuModuleUnload(module)
