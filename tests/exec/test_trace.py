"""Recordings: what is in them agrees with the program, for many requests, failed ones too."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from executor_programs import EXTENT, libtvm_path, needs_two_cores, vector, write_program

from heteroplace.errors import ExecutionError
from heteroplace.native.execute import Executor, RecordedTrace, Request
from tests.chrome_trace_model import checked, of

pytestmark = pytest.mark.timeout(120)

CALLS = [
    "call 0 0 1 1 8,0 -",
    "copy 1 1 0 1 0:1",
    "call 1 2 0 1 1,0,2 -",
    "call 0 3 0 1 1,2,3 1:2",
]
"""y = 2x + 1, copied to another queue, z = y + y there, and y + z again here."""
NUM_INSTRUCTIONS = len(CALLS)
LENGTHS = (2, 2)
WAITS = {(1, 0): (0, 0), (0, 1): (1, 1)}
"""Instructions (queue, place) that wait, and for which."""

QUEUES = [
    pytest.param(("cpu", "cpu"), marks=needs_two_cores),
    ("cpu", "fake:20000"),
    ("fake:0", "fake:20000"),
]


def make(library: str, queues: tuple[str, ...], max_in_flight: int = 1) -> Executor:
    text = write_program(queues, CALLS, outputs=(3,))
    return Executor(libtvm_path(), library, text, max_in_flight=max_in_flight)


def submit(executor: Executor) -> Request:
    request = executor.begin()
    assert request is not None
    request.set_input("x0", vector(1))
    request.submit()
    return request


def call(executor: Executor) -> None:
    with submit(executor) as request:
        request.finish()


def check_whole_requests(trace: RecordedTrace) -> None:
    """Of each request that succeeded all instructions, in an order that its waits allow."""
    requests, events = trace.requests, trace.events
    assert len(set(requests["request"])) == len(requests)
    assert (requests["start_ns"] <= requests["finish_ns"]).all()
    for request in requests:
        own = events[events["request"] == request["request"]]
        assert (own["slot"] == request["slot"]).all()
        if request["has_failed"]:
            continue
        spans = {(e["queue"], e["instruction"]): e for e in own}
        assert len(spans) == len(own) == NUM_INSTRUCTIONS
        assert (own["is_done"] == 1).all()
        for waiting, awaited in WAITS.items():
            assert spans[awaited]["finish_ns"] <= spans[waiting]["start_ns"]
    for queue in range(len(LENGTHS)):
        own = np.sort(events[events["queue"] == queue], order=["start_ns", "finish_ns"])
        assert (own["start_ns"] <= own["finish_ns"]).all()
        assert (own["finish_ns"][:-1] <= (own["start_ns"] - own["wait_ns"])[1:]).all()


def slots_in_use(requests: np.ndarray) -> list[int]:
    """How many requests are at work from each moment on at which one begins or ends."""
    moments = sorted({*requests["start_ns"].tolist(), *requests["finish_ns"].tolist()})
    begun = [(requests["start_ns"] <= ns).sum() for ns in moments]
    return [
        int(n - (requests["finish_ns"] <= ns).sum()) for n, ns in zip(begun, moments, strict=True)
    ]


@pytest.mark.parametrize("queues", QUEUES)
@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_every_instruction_of_every_request_is_there(
    library: str, queues: tuple[str, ...], max_in_flight: int
) -> None:
    executor = make(library, queues, max_in_flight)
    call(executor)
    executor.start_trace()
    callers = [
        threading.Thread(target=lambda: [call(executor) for _ in range(20)]) for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    trace = executor.stop_trace()
    call(executor)
    assert (trace.num_dropped, trace.num_unfinished) == (0, 0)
    assert trace.requests["request"].tolist() == list(range(80))
    assert len(trace.events) == 80 * NUM_INSTRUCTIONS
    assert set(trace.requests["slot"]) <= set(range(max_in_flight))
    assert not trace.requests["has_failed"].any()
    check_whole_requests(trace)


def test_times_are_those_of_the_monotonic_clock(library: str) -> None:
    executor = make(library, ("cpu", "fake:3000000"))
    before_ns = time.monotonic_ns()
    executor.start_trace()
    start_ns = time.monotonic_ns()
    call(executor)
    finish_ns = time.monotonic_ns()
    trace = executor.stop_trace()
    after_ns = time.monotonic_ns()
    slack_ns = 1000  # of tying one clock to the other
    assert before_ns <= trace.origin_ns <= start_ns
    assert trace.origin_ns + trace.duration_ns <= after_ns
    (request,) = trace.requests
    assert request["start_ns"] + trace.origin_ns >= start_ns - slack_ns
    assert request["finish_ns"] + trace.origin_ns <= finish_ns + slack_ns
    ours = trace.events[trace.events["queue"] == 0]
    assert (ours["start_ns"] >= request["start_ns"]).all()
    assert (ours["finish_ns"] <= request["finish_ns"]).all()
    # Each of the two steps of the fake device lasts 3 ms, for which the last call waits.
    delayed = trace.events[trace.events["queue"] == 1]
    assert (delayed["finish_ns"] - delayed["start_ns"] >= 3_000_000).all()
    assert ours["wait_ns"][1] >= 6_000_000


def test_the_last_requests_are_kept_and_the_others_counted(library: str) -> None:
    executor = make(library, ("fake:0", "fake:0"), 2)
    executor.start_trace(5)
    for _ in range(12):
        call(executor)
    trace = executor.stop_trace()
    assert trace.num_dropped == 7
    assert trace.requests["request"].tolist() == list(range(7, 12))
    check_whole_requests(trace)
    executor.start_trace(1)  # as many as can be in flight, at least
    for _ in range(3):
        call(executor)
    assert executor.stop_trace().requests["request"].tolist() == [1, 2]


@pytest.mark.parametrize("queues", [("cpu", "fake:20000000"), ("fake:0", "fake:20000000")])
def test_requests_that_fail_midway_end_in_the_trace(library: str, queues: tuple[str, ...]) -> None:
    executor = make(library, queues, 3)
    executor.start_trace()
    for cancelled in (2, 1):
        requests = [submit(executor) for _ in range(3)]
        requests[cancelled].cancel("enough")
        for index, request in enumerate(requests):
            if index == cancelled:
                with pytest.raises(ExecutionError, match="enough"):
                    request.finish()
            else:
                request.finish()
            request.close()
    trace = executor.stop_trace()
    assert trace.requests["has_failed"].tolist() == [0, 0, 1, 0, 1, 0]
    assert trace.num_unfinished == 0
    check_whole_requests(trace)
    text = trace.chrome_trace()
    events = checked(text)
    assert sum(e["args"]["failed"] for e in of(events, "b")) == 2
    given_up = trace.events[trace.events["is_done"] == 0]
    assert len(of(events, "X", "failed")) == len(given_up)
    failed = set(trace.requests["request"][trace.requests["has_failed"] == 1])
    assert set(given_up["request"]) <= failed


@pytest.mark.parametrize("queues", QUEUES)
def test_the_chrome_trace_agrees_with_the_recording(
    library: str, queues: tuple[str, ...], tmp_path: Path
) -> None:
    executor = make(library, queues, 2)
    executor.start_trace()
    for _ in range(6):
        requests = [submit(executor) for _ in range(2)]
        for request in requests:
            request.finish()
            request.close()
    trace = executor.stop_trace()
    events = checked(trace.chrome_trace(["a", "b to there", "c", 'd"\n']))
    slices = [e for e in of(events, "X") if e["cat"] in ("run", "copy")]
    assert len(slices) == len(trace.events)
    assert {(e["name"], e["cat"]) for e in slices} == {
        ("a", "run"),
        ("b to there", "copy"),
        ("c", "run"),
        ('d"\n', "run"),
    }
    threads = {e["tid"]: e["args"]["name"] for e in of(events, "M") if e["name"] == "thread_name"}
    assert threads == {1: "q0 (cpu:0)", 2: "q1 (cpu:0)"}
    # To the copy; from the copy and from the call that was waited for to the last call.
    assert len(of(events, "s")) == 3 * 12
    assert [len(of(events, phase, "request")) for phase in "be"] == [12, 12]
    waits = trace.events["wait_ns"]
    assert len(of(events, "X", "wait")) == (waits >= 100).sum()
    slots = [e["args"]["slots"] for e in of(events, "C") if e["name"] == "slots in use"]
    assert slots == slots_in_use(trace.requests)
    memory = [e["args"]["bytes"] for e in of(events, "C") if e["name"] == "memory ram"]
    assert memory == [slot * (8 + 1) * 4 * EXTENT for slot in slots]


def test_a_recording_that_cannot_be_is_refused(library: str) -> None:
    executor = make(library, ("fake:0", "fake:0"))
    with pytest.raises(ExecutionError, match="nothing is recorded"):
        executor.stop_trace()
    for number in (0, -1, 2**62):
        with pytest.raises(ExecutionError, match=f"last {number} requests was asked for"):
            executor.start_trace(number)
    executor.start_trace()
    with pytest.raises(ExecutionError, match="records already"):
        executor.start_trace()
    trace = executor.stop_trace()
    assert (len(trace.events), len(trace.requests)) == (0, 0)
    assert not of(checked(trace.chrome_trace()), "X")


def test_measurements_work_while_a_recording_is_on(library: str) -> None:
    executor = make(library, ("cpu", "fake:0"))
    executor.set_input("x0", vector(1))
    executor.start_trace()
    executor.benchmark(5)
    starts, finishes = executor.run_timed()
    assert (starts <= finishes).all()
    assert executor.profile_runs(3).shape == (3, NUM_INSTRUCTIONS)
    executor.run()
    trace = executor.stop_trace()
    assert len(trace.requests) == 6
    check_whole_requests(trace)


def test_a_request_in_flight_is_waited_for_or_counted(library: str) -> None:
    executor = make(library, ("cpu", "fake:50000000"))
    executor.start_trace()
    request = submit(executor)
    assert executor.stop_trace(0.01).num_unfinished == 1
    request.finish()
    executor.start_trace()
    request.submit()
    trace = executor.stop_trace()
    assert (len(trace.requests), trace.num_unfinished) == (1, 0)
    request.finish()


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan")])
def test_a_time_that_is_none_ends_no_recording(library: str, timeout_s: float) -> None:
    executor = make(library, ("cpu", "fake:0"))
    executor.start_trace()
    with pytest.raises(ExecutionError, match=r"timeout_s is .*; expected seconds, or None"):
        executor.stop_trace(timeout_s)
    call(executor)
    assert len(executor.stop_trace().requests) == 1


def test_threads_have_the_names_of_their_queues(library: str) -> None:
    executor = make(library, ("cpu", "fake:0"))
    names = {(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
    assert {"hp q0", "hp q1"} <= names
    del executor
