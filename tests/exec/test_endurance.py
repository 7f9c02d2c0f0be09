"""Many calls and little room: nothing grows, every answer is right, and nobody is woken in vain."""

from __future__ import annotations

import gc
import itertools
import os
import resource
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest
from executor_programs import libtvm_path, needs_two_cores, vector, write_program

from heteroplace.errors import ExecutionError
from heteroplace.native.execute import Executor
from heteroplace.run.loaded_program import LoadedProgram
from tests.programs import run_python

pytestmark = pytest.mark.timeout(120)

TWICE = ["call 0 0 1 1 8,0 -"]
"""y0 = 2 * x0 + 1"""
FAILING = ["call 0 5 0 1 8,0 -"]
"""Two arguments instead of three."""
TO_AND_FRO = ["call 0 0 1 1 8,0 -", "call 1 1 0 1 0,8,1 0:1", "call 0 2 0 1 1,0,2 1:1"]
"""(2x + 1) + x, and that + 2x + 1, by two queues in turns."""

IN_FLIGHT = 3
FEW, MANY = 10_000, 1_000_000
GROWTH_BYTES = 2 << 20
"""Less than `MANY` calls of which each leaves three bytes behind, or `FEW` that leave 210 each."""


def load(
    library: str, queues: tuple[str, ...] = ("cpu",), calls: list[str] = TWICE, output: int = 0
) -> LoadedProgram:
    text = write_program(queues, calls, outputs=(output,))
    return LoadedProgram(Executor(libtvm_path(), library, text, max_in_flight=IN_FLIGHT))


class Held:
    """What this process holds; a thread that has ended is gone after a moment."""

    def __init__(self) -> None:
        gc.collect()
        self.threads = len(list(Path("/proc/self/task").iterdir()))
        self.files = len(list(Path("/proc/self/fd").iterdir()))
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.resident_bytes = pages * resource.getpagesize()


def held_bytes(program: LoadedProgram) -> int:
    """As many times what one request holds as were ever in flight at once."""
    return sum(use.total_bytes for use in program._native.memory_bytes().values())


def check_nothing_grew(before: Held) -> None:
    deadline = time.monotonic() + 10
    now = Held()
    while now.threads > before.threads and time.monotonic() < deadline:
        time.sleep(0.02)
        now = Held()
    assert now.threads <= before.threads
    assert now.files == before.files
    assert now.resident_bytes < before.resident_bytes + GROWTH_BYTES


counts = pytest.mark.parametrize(
    "count", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])]
)


@counts
def test_calls_leave_nothing(library: str, count: int) -> None:
    program = load(library)
    x, out = vector(1), [np.empty_like(vector(1))]

    def call(times: int) -> None:
        for _ in range(times):
            program.run(x0=x, out=out)

    call(FEW // 10)
    before, request_bytes = Held(), held_bytes(program)
    call(count)
    check_nothing_grew(before)
    assert held_bytes(program) == request_bytes
    np.testing.assert_array_equal(out[0], 2 * x + 1)


def failed(program: LoadedProgram, x: np.ndarray) -> None:
    with pytest.raises(ExecutionError, match="step 5 failed"):
        program.run(x0=x)


def cancelled(program: LoadedProgram, x: np.ndarray) -> None:
    future = program.run_async(x0=x)
    if future.cancel():
        with pytest.raises(CancelledError):
            future.result()
    else:
        np.testing.assert_array_equal(future.result()[0], 2 * x + 1)


def late(program: LoadedProgram, x: np.ndarray) -> None:
    try:
        program.run(x0=x, timeout_s=0)
    except ExecutionError as fault:
        assert "limit" in str(fault) or "at work" in str(fault)


def left(program: LoadedProgram, x: np.ndarray) -> None:
    stream = program.run_many(itertools.repeat({"x0": x}))
    np.testing.assert_array_equal(next(stream)[0], 2 * x + 1)
    stream.close()


def refused(program: LoadedProgram, x: np.ndarray) -> None:
    with pytest.raises(ExecutionError, match="expected float32"):
        program.run(x0=x[1:])


@counts
def test_calls_that_end_badly_leave_nothing(library: str, count: int) -> None:
    program, failing = load(library), load(library, calls=FAILING)
    program.run(x0=vector(0))
    request_bytes = held_bytes(program)
    ways: list[Callable[[LoadedProgram, np.ndarray], None]] = [cancelled, late, left, refused]

    def call(times: int) -> None:
        for number in range(times // 20):
            x = vector(number % 50)
            failed(failing, x)
            ways[number % len(ways)](program, x)
            np.testing.assert_array_equal(program.run(x0=x)[0], 2 * x + 1)

    call(FEW // 2)
    before, failing_bytes = Held(), held_bytes(failing)
    call(count)
    check_nothing_grew(before)
    assert held_bytes(program) <= IN_FLIGHT * request_bytes
    assert held_bytes(failing) == failing_bytes


IN_LITTLE_ROOM = """
import os, sys, threading
os.sched_setaffinity(0, {allowed})
sys.path.insert(0, "tests/exec")
from test_endurance import *
programs = [load({library!r}, queues, TO_AND_FRO, 2) for queues in {queues}]
faults = []

def check(x, outputs):
    y = 2 * x + 1
    np.testing.assert_array_equal(outputs[0], y + x + y)

def caller(number):
    try:
        program = programs[number % 2]
        seeds = range(100 * number, 100 * number + 40)
        if number % 3 == 0:
            for seed in seeds:
                check(vector(seed), program.run(x0=vector(seed)))
        elif number % 3 == 1:
            futures = [(seed, program.run_async(x0=vector(seed))) for seed in seeds]
            for seed, future in futures:
                check(vector(seed), future.result())
        else:
            stream = program.run_many({{"x0": vector(seed)}} for seed in seeds)
            for seed, outputs in zip(seeds, stream, strict=True):
                check(vector(seed), outputs)
    except BaseException as fault:
        faults.append(repr(fault))

callers = [threading.Thread(target=caller, args=(number,)) for number in range(8)]
for thread in callers:
    thread.start()
for thread in callers:
    thread.join()
print(faults)
"""


@pytest.mark.costly
@pytest.mark.parametrize(
    "queues",
    [
        pytest.param((("cpu", "cpu"), ("cpu", "cpu")), marks=needs_two_cores, id="cores"),
        pytest.param((("cpu", "fake:1000"), ("fake:0", "fake:1000")), id="streams"),
    ],
)
def test_eight_callers_of_two_executors_on_one_core_get_their_own_answers(
    library: str, queues: tuple[tuple[str, ...], ...]
) -> None:
    allowed = {min(os.sched_getaffinity(0))}
    program = IN_LITTLE_ROOM.format(library=library, queues=queues, allowed=allowed)
    assert run_python(program) == "[]\n"


class Sleeps:
    """How often the threads of this process have gone to sleep: each is a wake-up of theirs."""

    def __init__(self) -> None:
        self.own = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        self.others = 0
        for status in Path("/proc/self/task").glob("*/status"):
            if int(status.parent.name) != threading.get_native_id():
                line = status.read_text().partition("nonvoluntary")[0].rsplit("voluntary", 1)[1]
                self.others += int(line.split(":")[1])


def sleeps_of(call: Callable[[], object]) -> tuple[float, float]:
    """Sleeps of the caller in one call from idle, and of all others after it; medians."""
    own, others = [], []
    for _ in range(15):
        time.sleep(0.005)
        before = Sleeps()
        call()
        own.append(Sleeps().own - before.own)
        time.sleep(0.005)
        others.append(Sleeps().others - before.others)
    return statistics.median(own), statistics.median(others)


def test_a_call_of_one_queue_wakes_nobody(library: str) -> None:
    program = load(library)
    x = vector(1)
    program.run(x0=x)
    assert sleeps_of(lambda: program.run(x0=x)) == (0, 0)


@needs_two_cores
def test_a_call_from_idle_adds_at_most_one_wake_up_to_a_benchmark(library: str) -> None:
    program = load(library, ("cpu", "cpu"), TO_AND_FRO, 2)
    x = vector(1)
    program.run(x0=x)
    measured = sum(sleeps_of(lambda: program._native.benchmark(1)))
    assert sum(sleeps_of(lambda: program.run(x0=x))) <= measured + 1
