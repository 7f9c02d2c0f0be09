"""Programs whose state sessions keep: in place or beside, cancelled, forked, under threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest
from executor_programs import EXTENT, VECTOR_BYTES, libtvm_path, vector, write_program

from heteroplace.errors import ArtifactError, ExecutionError
from heteroplace.native.execute import Executor, Session

pytestmark = pytest.mark.timeout(120)


def state_program(queue: str, instructions: list[str], output: str) -> str:
    """A program of one input `x0`, state `h` at place 0 of a session and output `hn`.

    Tensors 0 to 7 are in the arena, 8 is x0, 9 is `h`; `output` is the tensor of `hn`.
    """
    text = write_program((queue,), instructions, outputs=(0,))
    lines = [f"tensor 9 0 session 0 2 32 {EXTENT}", "input h 9", f"output hn {output}"]
    head, mark, tail = text.partition("output y0")
    tail = tail.replace("\nkernel 0", "\nstate h hn\nkernel 0", 1)
    return "\n".join([head + lines[0], *lines[1:], mark + tail])


def in_place(queue: str = "cpu") -> str:
    """y = h + x, and then h becomes h + x where it lies."""
    return state_program(queue, ["call 0 0 0 1 9,8,0 -", "call 0 1 0 1 9,8,9 -"], "9")


def beside(queue: str = "cpu") -> str:
    """y = h + x, hn = y + x."""
    return state_program(queue, ["call 0 0 0 1 9,8,0 -", "call 0 1 0 1 0,8,1 -"], "1")


def make(library: str, text: str, max_in_flight: int = 1) -> Executor:
    return Executor(libtvm_path(), library, text, max_in_flight=max_in_flight)


def ask(executor: Executor, session: Session, x: np.ndarray) -> np.ndarray:
    """One call of a session."""
    request = executor.begin(None, session)
    assert request is not None
    with request:
        request.set_input("x0", x)
        request.submit()
        request.finish()
        return request.get_output("y0")


@pytest.mark.parametrize("queue", ["cpu", "fake:0"])
@pytest.mark.parametrize(("text", "factor"), [(in_place, 1), (beside, 2)])
def test_state_stays_from_call_to_call(
    library: str, queue: str, text: Callable[[str], str], factor: int
) -> None:
    executor = make(library, text(queue))
    session, h = executor.session(), np.zeros(EXTENT, "float32")
    assert session.num_bytes == VECTOR_BYTES
    for seed in range(10):
        x = vector(seed)
        np.testing.assert_array_equal(ask(executor, session, x), h + x)
        h = h + factor * x
        np.testing.assert_array_equal(session.read("h"), h)


@pytest.mark.parametrize("text", [in_place, beside])
def test_a_call_without_a_session_has_state_as_its_input(
    library: str, text: Callable[[], str]
) -> None:
    executor = make(library, text(), 2)
    session = executor.session()
    ask(executor, session, vector(0))
    before = session.read("h")
    for _ in range(2):
        with executor.begin() as request:  # type: ignore[union-attr]
            request.set_input("x0", vector(1))
            request.set_input("h", vector(2))
            request.submit()
            request.finish()
            np.testing.assert_array_equal(request.get_output("y0"), vector(1) + vector(2))
    np.testing.assert_array_equal(session.read("h"), before)


def test_state_of_calls_without_a_session_takes_memory_when_it_is_used(library: str) -> None:
    executor = make(library, beside())
    before = executor.memory_bytes()["ram"].values_bytes
    ask(executor, executor.session(), vector(0))
    assert executor.memory_bytes()["ram"].values_bytes == before
    executor.benchmark(1)
    assert executor.memory_bytes()["ram"].values_bytes > before


def test_state_that_was_changed_in_place_is_no_input_of_the_next_call(library: str) -> None:
    executor = make(library, in_place())
    with executor.begin() as request:  # type: ignore[union-attr]
        request.set_input("x0", vector(1))
        request.set_input("h", vector(2))
        request.submit()
        request.finish()
        with pytest.raises(ExecutionError, match="inputs without a value: 'h'"):
            request.submit()
    executor.benchmark(3)  # what is measured may have any value


def test_a_cancelled_call_leaves_the_state(library: str) -> None:
    executor = make(library, beside("fake:20000000"))
    session = executor.session()
    ask(executor, session, vector(0))
    before = session.read("h")
    with executor.begin(None, session) as request:  # type: ignore[union-attr]
        request.set_input("x0", vector(1))
        request.submit()
        request.cancel("nobody waits")
        with pytest.raises(ExecutionError, match="nobody waits"):
            request.finish()
    np.testing.assert_array_equal(session.read("h"), before)
    np.testing.assert_array_equal(ask(executor, session, vector(2)), before + vector(2))


def elsewhere(text: str) -> str:
    """The same program, which keeps its state at another place of another space."""
    text = text.replace("session 0 2 32", f"session {2 * VECTOR_BYTES} 2 32")
    return text.replace("space 0 ram", "space 0 other-ram")


@pytest.mark.parametrize("other", [in_place(), beside(), beside("fake:0")])
def test_state_moves_to_where_a_program_has_it(library: str, other: str) -> None:
    programs = [make(library, in_place(), 2), make(library, elsewhere(other), 2)]
    session, h = programs[0].session(), np.zeros(EXTENT, "float32")
    for seed, (which, factor) in enumerate([(0, 1), (1, 1 + (other != in_place()))] * 3):
        x = vector(seed)
        np.testing.assert_array_equal(ask(programs[which], session, x), h + x)
        h = h + factor * x
        np.testing.assert_array_equal(session.read("h"), h)
    assert session.num_bytes == 4 * VECTOR_BYTES
    fork = session.fork()
    session.clear()
    np.testing.assert_array_equal(ask(programs[1], fork, x), h + x)
    np.testing.assert_array_equal(ask(programs[0], session, x), x)


def test_a_session_outlives_the_program_that_had_it_last(library: str) -> None:
    executor, other = make(library, in_place()), make(library, elsewhere(in_place()))
    session = executor.session()
    ask(other, session, vector(3))
    del other
    gc.collect()
    np.testing.assert_array_equal(session.read("h"), vector(3))
    np.testing.assert_array_equal(ask(executor, session, vector(4)), vector(3) + vector(4))


def test_a_program_with_other_state_refuses_a_session(library: str) -> None:
    executor = make(library, in_place())
    renamed = make(
        library, in_place().replace("input h ", "input g ").replace("state h", "state g")
    )
    session = executor.session()
    with pytest.raises(ExecutionError, match=r"the session keeps 'h': .*, and the program 'g'"):
        ask(renamed, session, vector(0))
    np.testing.assert_array_equal(ask(executor, session, vector(1)), vector(1))


def test_a_session_has_one_call_at_a_time(library: str) -> None:
    executor = make(library, in_place(), 2)
    session = executor.session()
    with executor.begin(None, session), pytest.raises(ExecutionError, match="fork the session"):
        executor.begin(None, session)
    ask(executor, session, vector(0))


@pytest.mark.costly(3)
def test_a_session_that_is_dropped_in_the_middle_frees_its_slot(library: str) -> None:
    executor = make(library, in_place("fake:1000000"))
    for seed in range(20):
        session = executor.session()
        request = executor.begin(None, session)
        assert request is not None
        request.set_input("x0", vector(seed))
        request.submit()
        del session, request
        gc.collect()
    session = executor.session()
    np.testing.assert_array_equal(ask(executor, session, vector(1)), vector(1))


@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_sessions_of_threads_know_nothing_of_each_other(library: str, max_in_flight: int) -> None:
    executor = make(library, in_place(), max_in_flight)
    wrong: list[int] = []

    def call(caller: int) -> None:
        for number in range(125):
            session, h = executor.session(), np.zeros(EXTENT, "float32")
            for step in range(4):
                if step == 2:
                    session = session.fork()
                x = vector(1000 * caller + number + step)
                if not np.array_equal(ask(executor, session, x), h + x):
                    wrong.append(caller)
                h = h + x
            other = executor.session()
            other.write("h", session.read("h"))
            if not np.array_equal(ask(executor, other, x), h + x):
                wrong.append(caller)

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_arrays_of_another_type_are_refused(library: str) -> None:
    session = make(library, in_place()).session()
    with pytest.raises(ExecutionError, match=r"state 'h': `array` is float64 \(256\), expected"):
        session.write("h", np.zeros(EXTENT))
    with pytest.raises(ExecutionError, match="keeps no input 'x0'"):
        session.read("x0")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("state h hn", "state x hn", "state of no input 'x'"),
        ("state h hn", "state h y", "state of no output 'y'"),
        ("state h hn", "state x0 hn", "not in storage session"),
        ("state h hn", "state h hn\nstate h y0", "'h' is state twice"),
        ("session 0 2 32 256", "session 0 2 32 128", r"'h' is float32 \(128\), and output 'hn'"),
        ("session 0", "session 3", "starts at byte 3"),
    ],
)
def test_wrong_state_is_refused(library: str, old: str, new: str, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        make(library, beside().replace(old, new))
