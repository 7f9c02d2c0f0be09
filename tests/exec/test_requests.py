"""Requests: several callers and slots, each with its own values, failures and limits."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from executor_programs import EXTENT, libtvm_path, needs_two_cores, vector, write_program

from heteroplace.errors import ExecutionError
from heteroplace.native.execute import Executor

pytestmark = pytest.mark.timeout(120)

CALLS = ["call 0 0 1 1 8,0 -", "call 1 1 0 1 0,8,1 0:1", "call 0 2 0 1 1,0,2 1:1"]
"""(2x + 1) + x, and that + 2x + 1, by two queues in turns."""

QUEUES = [
    pytest.param(("cpu", "cpu"), marks=needs_two_cores),
    ("cpu", "fake:20000"),
    ("fake:0", "fake:20000"),
]

SLOW = ["copy 0 0 8 0 -", "call 0 1 1 1 0,1 -"]
"""2x + 1, on a queue that takes its time."""


def make(library: str, text: str, max_in_flight: int = 1) -> Executor:
    return Executor(libtvm_path(), library, text, max_in_flight=max_in_flight)


def expected(x: np.ndarray) -> np.ndarray:
    y = 2 * x + 1
    return y + x + y


def ask(executor: Executor, x: np.ndarray) -> np.ndarray:
    """One call from its input to its output."""
    request = executor.begin()
    assert request is not None
    with request:
        request.set_input("x0", x)
        request.submit()
        request.finish()
        return request.get_output("y0")


def in_threads(works: list[threading.Thread]) -> None:
    for work in works:
        work.start()
    for work in works:
        work.join()


@pytest.mark.costly(4)
@pytest.mark.parametrize("max_in_flight", [1, 3])
@pytest.mark.parametrize("queues", QUEUES)
def test_every_caller_gets_its_own_answer(
    library: str, queues: tuple[str, ...], max_in_flight: int
) -> None:
    executor = make(library, write_program(queues, CALLS, outputs=(2,)), max_in_flight)
    wrong: list[tuple[int, int]] = []

    def call(caller: int) -> None:
        for run in range(100):
            x = vector(1000 * caller + run)
            if not np.array_equal(ask(executor, x), expected(x)):
                wrong.append((caller, run))

    in_threads([threading.Thread(target=call, args=(caller,)) for caller in range(4)])
    assert not wrong


@pytest.mark.parametrize("queues", QUEUES)
def test_requests_in_flight_are_independent_and_in_order(
    library: str, queues: tuple[str, ...]
) -> None:
    executor = make(library, write_program(queues, CALLS, outputs=(2,)), 4)
    requests = [executor.begin() for _ in range(4)]
    assert executor.begin(timeout_s=0.01) is None
    for turn in range(30):
        for index, request in enumerate(requests):
            request.set_input("x0", vector(turn + 100 * index))
            request.submit()
        for index, request in reversed(list(enumerate(requests))):
            request.finish()
            x = vector(turn + 100 * index)
            np.testing.assert_array_equal(request.get_output("y0"), expected(x))


def test_an_input_that_is_not_given_has_the_value_of_the_executor(library: str) -> None:
    text = write_program(("cpu",), ["call 0 0 0 1 8,9,0 -"], num_inputs=2, outputs=(0,))
    executor = make(library, text, 2)
    executor.set_input("x1", vector(7))
    first, second = executor.begin(), executor.begin()
    for turn in range(2):
        for request in (first, second):
            request.set_input("x0", vector(turn))
            request.submit()
            request.finish()
            np.testing.assert_array_equal(request.get_output("y0"), vector(turn) + vector(7))
    first.close()
    executor.set_input("x1", vector(8))
    second.submit()
    second.finish()
    np.testing.assert_array_equal(second.get_output("y0"), vector(1) + vector(8))
    with pytest.raises(ExecutionError, match="inputs without a value: 'x0'"):
        make(library, text).begin().submit()


def test_a_cancelled_request_stops_no_other(library: str) -> None:
    executor = make(library, write_program(("fake:3000000",), SLOW, outputs=(1,)), 3)
    for _ in range(3):
        requests = [executor.begin() for _ in range(3)]
        for index, request in enumerate(requests):
            request.set_input("x0", vector(index))
            request.submit()
        requests[1].cancel("not wanted any more")
        with pytest.raises(ExecutionError, match=r"^not wanted any more$"):
            requests[1].finish()
        for index in (0, 2):
            requests[index].finish()
            np.testing.assert_array_equal(requests[index].get_output("y0"), 2 * vector(index) + 1)
        for request in requests:
            request.close()


def test_a_cancelled_request_ends_early_with_the_reason(library: str) -> None:
    text = write_program(("fake:0", "cpu"), ["copy 1 0 8 0 -", *["copy 0 1 0 1 1:1"] * 50])
    executor = make(library, text.replace("fake 1 0 0 0", "fake 1 0 0 10000000"))
    request = executor.begin()
    request.set_input("x0", vector(0))
    request.submit()
    assert not request.wait(0.01)
    request.cancel("enough")
    with pytest.raises(ExecutionError, match=r"^enough$"):
        request.finish()
    request.set_input("x0", vector(1))  # it can be used again


def test_a_step_that_does_not_end_is_named_and_blocks_only_until_it_ends(library: str) -> None:
    text = write_program(("fake:600000000", "cpu"), ["copy 1 0 8 0 -", "copy 0 7 0 1 1:1"])
    text = text.replace("q1 cpu 1 0 0 1", "q1 cpu 1 0 0 0")
    executor = make(library, text, 2)
    executor.set_input("x0", vector(0))
    with pytest.raises(
        ExecutionError, match=r"within its limit: a step does not end on queue 'q0' \(cpu:0\); the"
    ):
        executor.run(timeout_s=0.05)
    with pytest.raises(ExecutionError, match="cannot be used until this ends: a step does not end"):
        executor.begin()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            executor.run()
        except ExecutionError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("the executor is still stuck")


def test_an_executor_may_go_while_a_request_is_at_work(library: str) -> None:
    text = write_program(("fake:300000000",), ["copy 0 0 8 0 -"])
    executor = make(library, text)
    executor.set_input("x0", vector(0))
    request = executor.begin()
    request.submit()
    del request, executor


def test_one_thread_at_a_time_uses_a_request(library: str) -> None:
    executor = make(library, write_program(("fake:200000000",), ["copy 0 0 8 0 -"]))
    request = executor.begin()
    request.set_input("x0", vector(0))
    request.submit()
    waiting = threading.Thread(target=request.finish)
    waiting.start()
    time.sleep(0.05)
    with pytest.raises(ExecutionError, match="in use by another thread"):
        request.close()
    waiting.join()
    request.close()
    with pytest.raises(ExecutionError, match="closed"):
        request.submit()


def test_measuring_waits_until_no_request_is_in_flight(library: str) -> None:
    executor = make(library, write_program(("fake:20000000",), SLOW, outputs=(1,)), 2)
    executor.set_input("x0", vector(0))
    first, second = executor.begin(), executor.begin()
    second.submit()
    first.close()
    assert executor.benchmark(3).shape == (3,)
    assert second.wait(0)
    np.testing.assert_array_equal(second.get_output("y0"), 2 * vector(0) + 1)


def test_memory_counts_every_slot_once(library: str) -> None:
    executor = make(library, write_program(("cpu",), SLOW, outputs=(1,)), 3)
    one = executor.memory_bytes()["ram"].values_bytes
    requests = [executor.begin() for _ in range(3)]
    del requests
    assert executor.memory_bytes()["ram"].values_bytes == 3 * one


@pytest.mark.parametrize("max_in_flight", [0, 5000])
def test_wrong_numbers_of_slots_are_refused(library: str, max_in_flight: int) -> None:
    with pytest.raises(ExecutionError, match=f"in flight is {max_in_flight}; expected 1 to 4096"):
        make(library, write_program(("cpu",), SLOW), max_in_flight)


SETUP = """
import os, signal, sys, threading, time
import numpy as np
from heteroplace.errors import ExecutionError
from heteroplace.native.execute import Executor
files = {libtvm!r}, {library!r}, {text!r}
executor = Executor(*files)
x = np.ones({extent}, "float32")
executor.set_input("x0", x)
"""


def script(library: str, queues: tuple[str, ...], calls: list[str], body: str) -> list[str]:
    """The command that runs a program of Python with an executor."""
    text = write_program(queues, calls, outputs=(1,))
    setup = SETUP.format(libtvm=libtvm_path(), library=library, text=text, extent=EXTENT)
    return [sys.executable, "-c", setup + textwrap.dedent(body)]


def run_script(library: str, queues: tuple[str, ...], calls: list[str], body: str) -> str:
    done = subprocess.run(
        script(library, queues, calls, body), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("queues", [("cpu",), ("fake:1000",)])
def test_a_forked_child_runs_on(library: str, queues: tuple[str, ...]) -> None:
    body = """
    executor.run()
    child = os.fork()
    for _ in range(20):
        executor.run()
        assert np.array_equal(executor.get_output("y0"), 2 * x + 1)
    del executor
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    """
    run_script(library, queues, SLOW, body)


def test_a_child_forgets_requests_of_its_parent(library: str) -> None:
    # Who waits on the core of a worker that gives way goes on while that one still has the request
    # among those at work.
    body = """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(cores)])
    executor = Executor(*files, max_in_flight=2)
    executor.set_input("x0", x)
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
    for _ in range(5):
        executor.run()
        child = os.fork()
        if child == 0:
            os.sched_setaffinity(0, cores)
            for number in range(2, 6):
                executor.set_input("x0", number * x)
                executor.run()
                assert np.array_equal(executor.get_output("y0"), 2 * number * x + 1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """
    calls = ["copy 1 0 8 0 -", "call 0 1 1 1 0,2 1:1", *["call 0 1 1 1 0,2 -"] * 4_000]
    run_script(library, ("cpu", "cpu"), [*calls, "call 0 2 1 1 0,1 -"], body)


def test_a_child_that_was_forked_in_mid_request_is_told(library: str) -> None:
    body = """
    request = executor.begin()
    request.submit()
    child = os.fork()
    if child == 0:
        try:
            executor.run()
        except ExecutionError as error:
            os._exit(7 if "while a request was in flight" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 7 << 8
    request.finish()
    """
    run_script(library, ("fake:100000000",), SLOW, body)


@pytest.mark.costly
@pytest.mark.parametrize("queues", [("cpu",), ("fake:1000",)])
def test_a_pool_of_processes_runs_what_its_parent_has_loaded(
    library: str, queues: tuple[str, ...]
) -> None:
    body = """
    import multiprocessing
    from heteroplace.run.loaded_program import LoadedProgram
    program = LoadedProgram(executor)
    def work(number):
        results = program.run(x0=number * x), program.run_async(x0=number * x).result()
        return [float(outputs[0][0]) for outputs in results]
    program.run_async(x0=x).result()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(work, range(3)))
    """
    assert run_script(library, queues, SLOW, body) == "[[1.0, 1.0], [3.0, 3.0], [5.0, 5.0]]\n"


@pytest.mark.parametrize("queues", [("cpu",), ("fake:1000",)])
def test_a_daemon_thread_that_runs_does_not_abort_the_exit(
    library: str, queues: tuple[str, ...]
) -> None:
    body = """
    def loop():
        while True:
            executor.run()
    for _ in range(3):
        threading.Thread(target=loop, daemon=True).start()
    time.sleep(0.1)
    """
    run_script(library, queues, SLOW, body)


@pytest.mark.parametrize("queues", [("cpu",), ("cpu", "cpu"), ("fake:1000",)])
def test_a_finalizer_may_run_it_at_the_exit(library: str, queues: tuple[str, ...]) -> None:
    body = """
    class Last:
        def __init__(self, executor):
            self.executor = executor
        def __del__(self):
            self.executor.run()
            self.executor.run()
            print(is_finalizing(), flush=True)
    is_finalizing = sys.is_finalizing
    last = Last(executor)
    del executor
    """
    assert run_script(library, queues, SLOW, body) == "True\n"


@pytest.mark.parametrize("call", ["benchmark(10**9)", "sample(10**9, 1)", "run()"])
def test_ctrl_c_ends_what_is_at_work(library: str, call: str) -> None:
    queues = ("fake:1000000000",) if call == "run()" else ("cpu",)
    calls = ["call 0 0 1 1 8,1 -"] * (30 if call == "run()" else 1)
    body = f"""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a job behind a shell
    print("ready", flush=True)
    try:
        executor.{call}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        os._exit(0)
    """
    command = script(library, queues, calls, body)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=30)[0] == "interrupted\n"
        finally:
            process.kill()
