"""Calls of a loaded program: alone, with a future, in a stream; each gets its own answer."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future

import ml_dtypes
import numpy as np
import pytest
from executor_programs import EXTENT, libtvm_path, vector, write_program

from heteroplace.errors import ExecutionError
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.run.loaded_program import LoadedProgram
from tests.programs import run_python

pytestmark = pytest.mark.timeout(60)

TWICE = ["call 0 0 1 1 8,0 -"]
"""y0 = 2 * x0 + 1"""
FAILING = ["call 0 5 0 1 8,0 -"]
"""Two arguments instead of three."""
SLOW_NS = 40_000_000


def load(library: str, *, max_in_flight: int = 3, delay_ns: int = 0) -> LoadedProgram:
    """2 * x0 + 1, on a fake device that takes so long for a call."""
    queues = ("cpu",) if delay_ns == 0 else (f"fake:{delay_ns}",)
    return load_text(library, write_program(queues, TWICE, outputs=(0,)), max_in_flight)


def load_text(library: str, text: str, max_in_flight: int = 3) -> LoadedProgram:
    return LoadedProgram(NativeExecutor(libtvm_path(), library, text, max_in_flight=max_in_flight))


def check(seed: int, outputs: list[np.ndarray]) -> None:
    (output,) = outputs
    np.testing.assert_array_equal(output, vector(seed) * 2 + 1)


def await_idle(program: LoadedProgram) -> None:
    """All slots are free within a second: as many requests as there may be can be begun."""
    requests = [program._native.begin(1.0) for _ in range(program.max_in_flight)]
    assert None not in requests
    for request in requests:
        request.close()


def await_no_thread() -> None:
    end = time.monotonic() + 10
    while any(thread.name == "heteroplace-calls" for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_future_brings_the_outputs(library: str) -> None:
    program = load(library)
    futures = [program.run_async(x0=vector(seed)) for seed in range(10)]
    for seed in reversed(range(10)):
        check(seed, futures[seed].result())
    await_idle(program)


def test_inputs_are_copied_before_run_async_returns(library: str) -> None:
    program = load(library, delay_ns=SLOW_NS // 4)
    array = vector(1)
    future = program.run_async(x0=array)
    array[:] = 0
    check(1, future.result())


@pytest.mark.parametrize("in_flight", [1, 2, 3, None])
def test_a_stream_keeps_the_order_and_asks_for_few_inputs_ahead(
    library: str, in_flight: int | None
) -> None:
    asked: list[int] = []

    def inputs() -> Iterator[dict[str, np.ndarray]]:
        for seed in range(20):
            asked.append(seed)
            yield {"x0": vector(seed)}

    program = load(library)
    stream = program.run_many(inputs(), in_flight=in_flight)
    assert asked == []
    for seed, outputs in enumerate(stream):
        check(seed, outputs)
        assert len(asked) <= seed + (in_flight or 3)
    assert len(asked) == 20
    await_idle(program)


def test_a_stream_is_endless_if_its_inputs_are_and_leaves_nothing_when_closed(library: str) -> None:
    program = load(library, delay_ns=1_000_000)
    stream = program.run_many({"x0": vector(seed)} for seed in itertools.count())
    for seed in range(4):
        check(seed, next(stream))
    stream.close()
    assert next(stream, None) is None
    await_idle(program)


def test_streams_that_nobody_advances_stop_no_other_call(library: str) -> None:
    program = load(library, delay_ns=1_000_000)
    inputs = [{"x0": vector(seed)} for seed in range(8)]
    streams = [program.run_many(inputs) for _ in range(4)]
    for seed in range(8):
        for stream in streams:
            check(seed, next(stream))
        program.set_input("x0", vector(50))
        check(90, program.run(x0=vector(90)))


def test_a_wrong_item_is_told_in_its_place_and_the_rest_is_not_run(library: str) -> None:
    program = load(library)
    asked = []

    def inputs() -> Iterator[dict[str, np.ndarray]]:
        for seed in range(9):
            asked.append(seed)
            yield {"x0" if seed != 4 else "y": vector(seed)}

    stream = program.run_many(inputs())
    for seed in range(4):
        check(seed, next(stream))
    with pytest.raises(ExecutionError, match="no input 'y'; it has 'x0'"):
        next(stream)
    assert next(stream, None) is None
    assert asked == [0, 1, 2, 3, 4]
    await_idle(program)


def test_a_fault_of_the_inputs_comes_at_once(library: str) -> None:
    def inputs() -> Iterator[dict[str, np.ndarray]]:
        yield {"x0": vector(0)}
        raise KeyError("the file has no more")

    program = load(library)
    with pytest.raises(KeyError, match="no more"):
        next(program.run_many(inputs()))
    await_idle(program)


@pytest.mark.parametrize("way", ["run", "run_async", "run_many"])
def test_a_failed_run_is_told_and_stops_no_other(library: str, way: str) -> None:
    text = write_program(("cpu",), FAILING, outputs=(0,))
    program = load_text(library, text)
    for _ in range(3):
        with pytest.raises(ExecutionError, match="step 5 failed on queue 'q0'"):
            if way == "run":
                program.run(x0=vector(0))
            elif way == "run_async":
                program.run_async(x0=vector(0)).result()
            else:
                list(program.run_many([{"x0": vector(0)}] * 5))
        await_idle(program)


def test_a_cancelled_future_ends_its_run_and_no_other(library: str) -> None:
    program = load(library, delay_ns=SLOW_NS)
    futures = [program.run_async(x0=vector(seed)) for seed in range(3)]
    assert futures[1].cancel()
    with pytest.raises(CancelledError):
        futures[1].result()
    check(0, futures[0].result())
    check(2, futures[2].result())
    assert not futures[0].cancel()
    await_idle(program)


@pytest.mark.parametrize("num_before", [0, 1])
def test_a_run_out_of_time_is_told_and_leaves_the_others(library: str, num_before: int) -> None:
    program = load(library, delay_ns=4 * SLOW_NS)
    before = [program.run_async(x0=vector(seed)) for seed in range(num_before)]
    late = program.run_async(x0=vector(9), timeout_s=0.02)
    with pytest.raises(ExecutionError, match="did not end within its limit"):
        late.result()
    for seed, future in enumerate(before):
        check(seed, future.result())
    time.sleep(4 * SLOW_NS / 1e9)  # the fake device cannot be stopped in the middle
    check(5, program.run(x0=vector(5), timeout_s=10))


def test_waiting_for_a_request_counts_as_time(library: str) -> None:
    program = load(library, max_in_flight=1, delay_ns=4 * SLOW_NS)
    future = program.run_async(x0=vector(0))
    for call in (program.run, program.run_async):
        with pytest.raises(ExecutionError, match=r"all 1 requests .* at work for 0\.01 s"):
            call(x0=vector(1), timeout_s=0.01)
    check(0, future.result())


@pytest.mark.parametrize("timeout_s", [-1, float("nan")])
def test_a_time_that_is_none_is_refused(library: str, timeout_s: float) -> None:
    program = load(library)
    for call in (program.run, program.run_async):
        with pytest.raises(ExecutionError, match="timeout_s is"):
            call(x0=vector(0), timeout_s=timeout_s)
    with pytest.raises(ExecutionError, match="timeout_s is"):
        program.run_many([], timeout_s=timeout_s)


@pytest.mark.parametrize("in_flight", [0, 4])
def test_more_in_flight_than_there_are_requests_is_refused(library: str, in_flight: int) -> None:
    with pytest.raises(ExecutionError, match=rf"in_flight is {in_flight}; expected 1 to 3"):
        load(library).run_many([], in_flight=in_flight)


def test_a_callback_may_go_on_but_not_wait(library: str) -> None:
    program = load(library, max_in_flight=1, delay_ns=1_000_000)
    found: Future[object] = Future()

    def go_on(done: Future[list[np.ndarray]]) -> None:
        second = program.run_async(x0=vector(2))
        try:
            program.run(x0=vector(3))
        except ExecutionError as fault:
            found.set_result((second, str(fault)))

    program.run_async(x0=vector(1)).add_done_callback(go_on)
    second, text = found.result(10)
    check(2, second.result(10))
    assert "a callback of a future cannot wait for them" in text


def test_a_callback_that_raises_what_no_future_catches_ends_no_other_call(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))
    program = load(library, delay_ns=2 * SLOW_NS)
    first = program.run_async(x0=vector(1))
    late = [program.run_async(x0=vector(2), timeout_s=0.001) for _ in range(2)]
    for future in (first, *late):
        future.add_done_callback(lambda _: sys.exit("enough"))
    check(1, first.result(10))
    for future in late:
        with pytest.raises(ExecutionError, match="did not end within its limit"):
            future.result(10)
    check(3, program.run_async(x0=vector(3)).result(10))
    await_no_thread()
    assert told == [SystemExit] * 3


def test_eight_callers_get_their_own_answers(library: str) -> None:
    program = load(library)
    faults: list[BaseException] = []

    def by_run(seeds: list[int]) -> None:
        for seed in seeds:
            check(seed, program.run(x0=vector(seed)))

    def by_future(seeds: list[int]) -> None:
        futures = [program.run_async(x0=vector(seed)) for seed in seeds]
        for seed, future in zip(seeds, futures, strict=True):
            check(seed, future.result())

    def by_stream(seeds: list[int]) -> None:
        stream = program.run_many(({"x0": vector(seed)} for seed in seeds), in_flight=2)
        for seed, outputs in zip(seeds, stream, strict=True):
            check(seed, outputs)

    def caller(call: Callable[[list[int]], None], first: int) -> None:
        try:
            call(list(range(first, first + 30)))
        except BaseException as fault:
            faults.append(fault)

    ways = itertools.cycle((by_run, by_future, by_stream))
    callers = [
        threading.Thread(target=caller, args=(next(ways), 100 * index)) for index in range(8)
    ]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert faults == []
    await_idle(program)


def test_futures_of_a_dropped_executor_end_and_then_nothing_is_left(library: str) -> None:
    program = load(library, delay_ns=SLOW_NS // 2)
    native = weakref.ref(program._native)
    futures = [program.run_async(x0=vector(seed)) for seed in range(3)]
    del program
    gc.collect()
    for seed, future in enumerate(futures):
        check(seed, future.result())
    await_no_thread()
    assert native() is None


def test_a_dropped_stream_leaves_nothing(library: str) -> None:
    program = load(library, delay_ns=SLOW_NS // 2)
    stream = program.run_many({"x0": vector(seed)} for seed in itertools.count())
    check(0, next(stream))
    del stream
    gc.collect()
    await_idle(program)


def test_the_thread_goes_and_comes_again(library: str) -> None:
    program = load(library)
    for seed in range(2):
        check(seed, program.run_async(x0=vector(seed)).result())
        await_no_thread()


ENDING = """
import sys
from pathlib import Path
import numpy as np
sys.path.insert(0, "tests/exec")
import executor_programs as programs
from heteroplace.native.execute import Executor
from heteroplace.run.loaded_program import LoadedProgram
text = programs.write_program(("fake:20000000",), [{call!r}], outputs=(0,))
native = Executor(programs.libtvm_path(), {library!r}, text, max_in_flight=3)
program = LoadedProgram(native)
for seed in range(3):
    program.run_async(x0=programs.vector(seed)).add_done_callback(
        lambda future: print(float(future.result()[0][0]), flush=True)
    )
stream = program.run_many([{{"x0": programs.vector(seed)}} for seed in range(3)])
next(stream)
"""


@pytest.mark.costly
def test_a_program_ends_when_its_calls_have(library: str) -> None:
    printed = run_python(ENDING.format(call=TWICE[0], library=library))
    assert printed.split() == [str(float(vector(seed)[0] * 2 + 1)) for seed in range(3)]


def test_the_output_of_the_last_run_is_not_another_runs(library: str) -> None:
    program = load(library, delay_ns=SLOW_NS // 4)
    futures = [program.run_async(x0=vector(seed)) for seed in range(2)]
    for future in futures:
        future.result(10)
    with pytest.raises(ExecutionError, match="the last run began beside another"):
        program.get_output(0)
    program.run(x0=vector(2))
    check(2, [program.get_output(0)])


def test_out_is_written_in_place(library: str) -> None:
    program = load(library)
    out = np.zeros(EXTENT, "float32")
    (output,) = program.run(x0=vector(1), out=[out])
    assert output is out
    check(1, [out])
    (output,) = program.run_async({"x0": vector(2)}, out=[None]).result()
    assert output is not out
    check(2, [output])


def wrong_outs() -> dict[str, tuple[object, str]]:
    good = np.zeros(EXTENT, "float32")
    fixed = good.copy()
    fixed.flags.writeable = False
    return {
        "an array": (good, "`out` is an array; expected a list of 2 arrays"),
        "too few": ([good], "`out` is 1 elements; expected a list of 2 arrays"),
        "type": ([good, good.astype("float64")], "'y1': `out`: expected float32.*got float64"),
        "shape": ([good, good[:1]], r"'y1': `out`: expected float32 \(256,\), got float32 \(1,\)"),
        "read-only": ([good, fixed], "output 'y1': `out` is read-only"),
        "order": ([good, np.zeros(2 * EXTENT, "float32")[::2]], "`out` is not in C order"),
        "list": ([[0.0] * EXTENT, good], "`out` is a list; expected a numpy array, or None"),
        "overlap": ([good, good], "`out` of the outputs 'y0' and 'y1' overlap"),
    }


@pytest.mark.parametrize("case", wrong_outs())
def test_a_wrong_out_is_refused_before_anything_is_run(library: str, case: str) -> None:
    text = write_program(("cpu",), [*FAILING, "call 0 6 1 1 8,1 -"], outputs=(0, 1))
    program = load_text(library, text)
    out, message = wrong_outs()[case]
    with pytest.raises(ExecutionError, match=message):
        program.run(x0=vector(0), out=out)


def test_an_input_of_bfloat16_is_told_by_its_type(library: str) -> None:
    with pytest.raises(ExecutionError, match=r"'x0': expected float32.*, got bfloat16"):
        load(library).set_input("x0", np.zeros(EXTENT, ml_dtypes.bfloat16))
