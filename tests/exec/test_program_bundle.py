"""The programs of several hosts in one text: what is refused, and how the message says so."""

from __future__ import annotations

import threading

import executor_programs as programs
import numpy as np
import pytest
from executor_programs import EXTENT, VECTOR_BYTES, libtvm_path, make_executor, vector

from heteroplace.errors import ArtifactError, ExecutionError
from heteroplace.native.execute import Executor, Request
from heteroplace.native.transports import check_programs
from heteroplace.parts.hosts.native.core_ranks import local_transports

pytestmark = pytest.mark.timeout(60)

SHAPE = f"2 32 {EXTENT}"


def write_host(rank: int, name: str, queues: list[str], instructions: list[str]) -> str:
    """The program of one of three hosts; slots 0..3, and on the first one input and output."""
    text = [
        f'heteroplace-program 2 {rank} 3 "{name}"',
        f"space 0 ram 1 0 {4 * VECTOR_BYTES}",
        *(f"queue {i} q{i} {queue}" for i, queue in enumerate(queues)),
        *(f"tensor {slot} 0 arena {slot * VECTOR_BYTES} {SHAPE}" for slot in range(4)),
    ]
    if rank == 0:
        text += [f"tensor 4 0 external - {SHAPE}", "input x 4", "output y 3"]
    return "\n".join([*text, "kernel 0 add", "kernel 1 twice", *instructions, "end", ""])


HOST_A = write_host(
    0,
    "a",
    ["cpu 1 0 0 0", "send 1 0 -1 1", "recv 1 0 -1 2"],
    [
        "call 0 0 1 1 4,0 -",
        "send 1 1 0 0 0:1",
        "send 1 2 1 4 -",
        "recv 2 7 4 2 -",
        "call 0 8 1 1 2,3 2:1",
    ],
)
HOST_B = write_host(
    1,
    "b",
    ["fake 1 0 0 1000", "recv 1 0 -1 0", "send 1 0 -1 2"],
    [
        "recv 1 1 0 0 -",
        "recv 1 2 1 1 -",
        "call 0 3 0 1 0,1,2 1:2",
        "send 2 4 2 2 0:1",
        "send 2 5 3 0 1:1",
    ],
)
HOST_C = write_host(
    2,
    "c",
    ["copy 1 0 -1 -", "recv 1 0 -1 1", "send 1 0 -1 0"],
    ["recv 1 4 2 0 -", "recv 1 5 3 1 -", "copy 0 6 0 2 1:1", "send 2 7 4 2 0:1"],
)
BUNDLE = f"heteroplace-programs 2 3\n{HOST_A}# then\n{HOST_B}\n{HOST_C}"
"""y = 2 (3 x + 1) + 1: a doubles x, b adds x, c passes it on."""


def run_ranks(library: str, text: str, values: np.ndarray, **options: object) -> np.ndarray:
    """Run three ranks in as many threads, once; the output of the first."""
    executors = [
        Executor(libtvm_path(), library, text, transport=transport)
        for transport in local_transports(3, **options)  # type: ignore[arg-type]
    ]
    executors[0].set_input("x", values)
    threads = [threading.Thread(target=each.run) for each in executors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return executors[0].get_output("y")


@pytest.mark.parametrize("is_buffered", [False, True])
def test_three_hosts_compute_together(library: str, is_buffered: bool) -> None:
    values = vector(1)
    options = {"seed": 3, "max_delay_ns": 200_000, "is_buffered": is_buffered}
    found = run_ranks(library, BUNDLE, values, **options)
    np.testing.assert_array_equal(found, 2 * (3 * values + 1) + 1)


def test_hosts_are_named_in_the_order_of_ranks() -> None:
    assert check_programs(BUNDLE) == ("a", "b", "c")
    assert check_programs(programs.write_program(("cpu",), [])) == ("",)


# Each rule has a program that is wrong in nothing else.
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("heteroplace-programs 2 3", "heteroplace-programs 3 3", "version 3.*reads version 2"),
        ("heteroplace-programs 2 3", "heteroplace-programs 2 1", "number of hosts: got 1"),
        ("heteroplace-programs 2 3", "heteroplace-programs 2 2", "text after the last"),
        ("heteroplace-programs 2 3", "heteroplace-programs 2 4", "3 programs of the 4"),
        ("heteroplace-program 2 0 3", "heteroplace-program 2 3 3", "line 2: rank: got 3"),
        ("heteroplace-program 2 1 3", "heteroplace-program 2 2 3", "'q2' has messages with rank 2"),
        ("heteroplace-program 2 0 3", "heteroplace-program 2 0 4", "one of 4, and there are 3"),
        ('2 1 3 "b"', '2 1 3 "a"', "ranks 0 and 1 are both of host 'a'"),
        ("q1 send 1 0 -1 1", "q1 send 1 0 -1 3", "peer: got 3, expected 0 to 2"),
        ("q1 send 1 0 -1 1", "q1 send 1 0 -1 0", "messages with rank 0, its own"),
        ("q1 send 1 0 -1 1", "q1 send 1 0 0 1", "'q1' of messages has a space"),
        ("q1 send 1 0 -1 1", "q1 send 2 0 -1 1", "'q1' of kind send is on cuda:0"),
        ("q2 recv 1 0 -1 2", "q2 send 1 0 -1 1", "'q1' and 'q2' both send to rank 1"),
        ("recv 2 7 4 2 -", "send 2 7 4 2 -", "'q2' is not of kind send"),
        ("recv 2 7 4 2 -", "copy 2 7 4 2 -", "'q2' has messages alone, got a copy"),
        ("recv 2 7 4 2 -", "call 2 7 1 1 4,2 -", "'q2' has messages alone, got a call"),
        ("send 1 1 0 0 0:1", "send 1 1 0 9 0:1", "tensor: got 9"),
        ("send 1 1 0 0 0:1", "send 1 1 -1 0 0:1", "tag: got -1"),
        # A wait on a queue of another host, which has none of this number.
        ("send 1 1 0 0 0:1", "send 1 1 0 0 3:1", "queue of a wait: got 3, expected 0 to 2"),
        # A tag twice; a message without a send, without a receive, to the wrong host.
        ("send 1 2 1 4 -", "send 1 2 0 4 -", "message 0 is sent twice: line .*'a'.*, line"),
        ("recv 1 2 1 1 -", "recv 1 2 0 1 -", "message 0 is received twice: line .*'b'.*, line"),
        ("send 1 2 1 4 -\n", "", "receives message 4, and there are 4 sends"),
        ("recv 1 2 1 1 -\ncall 0 3 0 1 0,1,2 1:2", "call 0 3 0 1 0,1,2 1:1", "received by nobody"),
        ("recv 1 5 3 1 -\n", "", "message 3, which line .*'b'.* sends, is received by nobody"),
        ("q1 recv 1 0 -1 0", "q1 recv 1 0 -1 2", "message 0 is sent to rank 1 by line .*rank 2"),
        # Type, shape.
        (
            f"tensor 3 0 arena {3 * VECTOR_BYTES} {SHAPE}\ntensor 4 0 external - {SHAPE}",
            f"tensor 3 0 arena {3 * VECTOR_BYTES} {SHAPE}\ntensor 4 0 external - 2 32 16,16",
            r"message 1 is sent as .*16,.*16.* by line .*, and received as .*256",
        ),
        (
            f"tensor 3 0 arena {3 * VECTOR_BYTES} {SHAPE}\ntensor 4 0 external - {SHAPE}",
            f"tensor 3 0 arena {3 * VECTOR_BYTES} {SHAPE}\ntensor 4 0 external - 0 32 {EXTENT}",
            "message 1 is sent as int32.* and received as float32",
        ),
        # Two messages change places on one side only.
        (
            "send 2 4 2 2 0:1\nsend 2 5 3 0 1:1",
            "send 2 5 3 0 1:1\nsend 2 4 2 2 0:1",
            "from rank 1 to rank 2, message 3 is sent .* where message 2 is received",
        ),
        # Each program ends alone; together they wait for each other.
        ("send 1 2 1 4 -", "send 1 2 1 4 2:1", "would deadlock: .*'q1' of host 'a' .*'q2'"),
    ],
)
def test_programs_that_do_not_fit_are_refused(old: str, new: str, message: str) -> None:
    assert BUNDLE.count(old) == 1
    with pytest.raises(ArtifactError, match=message):
        check_programs(BUNDLE.replace(old, new, 1))


def test_a_program_that_counts_on_buffers_is_refused() -> None:
    # a receives 4 after it has sent 1, which b receives after it has sent 3, which c receives after
    # it has sent 4: that ends only if one of the three sends does not wait for its receive.
    text = BUNDLE.replace("call 0 3 0 1 0,1,2 1:2", "call 0 3 0 1 0,1,2 1:1")
    text = text.replace("recv 2 7 4 2 -", "recv 2 7 4 2 1:2")
    text = text.replace("recv 1 2 1 1 -", "recv 1 2 1 1 2:2")
    assert check_programs(text) == ("a", "b", "c")
    with pytest.raises(ArtifactError, match=r"would deadlock: .*of host 'a'.*of host 'c'"):
        check_programs(text.replace("recv 1 5 3 1 -", "recv 1 5 3 1 2:1"))


def test_programs_are_in_the_order_of_ranks() -> None:
    with pytest.raises(ArtifactError, match="expected that of rank 1, got that of host 'c'"):
        check_programs(f"heteroplace-programs 2 3\n{HOST_A}{HOST_C}{HOST_B}")


def test_a_line_is_told_by_its_number_in_the_whole_text() -> None:
    number = BUNDLE.splitlines().index("copy 0 6 0 2 1:1") + 1
    with pytest.raises(ArtifactError, match=f"line {number}: .*unknown word 'jump'"):
        check_programs(BUNDLE.replace("copy 0 6 0 2 1:1", "jump", 1))


def test_one_of_several_programs_is_refused_alone(library: str) -> None:
    with pytest.raises(ArtifactError, match=r"'a' \(rank 0\) is one of 3, and there are 1"):
        make_executor(library, HOST_A)


def test_the_first_version_has_no_messages() -> None:
    text = programs.write_program(("cpu",), [])
    queue = "queue 0 q0 cpu 1 0 0 0\n"
    for new in (queue + "queue 1 q1 send 1 0 -1 1\n", queue + "send 1 0 0 0 -\n"):
        with pytest.raises(ArtifactError, match=r"queue kind 'send'|unknown word 'send'"):
            check_programs(text.replace(queue, new, 1))


def test_as_many_ranks_as_hosts(library: str) -> None:
    with pytest.raises(ExecutionError, match=r"for 3 hosts.* is 1 rank; .*mpiexec -n 3"):
        make_executor(library, BUNDLE)
    transport = local_transports(2)[1]
    with pytest.raises(ExecutionError, match=r"for 3 hosts.* are 2 ranks"):
        Executor(libtvm_path(), library, BUNDLE, transport=transport)
    with pytest.raises(ExecutionError, match="for 1 host, and there are 2 ranks"):
        one_host = programs.write_program(("cpu",), [])
        Executor(libtvm_path(), library, one_host, transport=transport)


def test_who_lets_go_of_a_request_that_has_ended_ends_no_job(library: str) -> None:
    executors = [
        Executor(libtvm_path(), library, BUNDLE, transport=each, max_in_flight=2)
        for each in local_transports(3)
    ]

    def submit(values: np.ndarray) -> list[Request]:
        requests = [executor.begin() for executor in executors]
        requests[0].set_input("x", values)
        for request in requests:
            request.submit()
        return requests

    for turn in range(3):
        ended = submit(vector(turn))
        for request in ended:
            request.finish()
        for request in ended:
            request.cancel()
        values = ended[0].get_output("y")
        np.testing.assert_array_equal(values, 2 * (3 * vector(turn) + 1) + 1)
        # Ended, as what measures waits for that, and dropped before anybody knows.
        dropped = submit(vector(turn))
        for request in ended:
            request.close()
        for executor in executors:
            executor.memory_bytes()
        for request in dropped:
            request.close()


def test_a_cancelled_request_ends_the_job(library: str) -> None:
    executors = [
        Executor(libtvm_path(), library, BUNDLE, transport=each) for each in local_transports(3)
    ]
    request = executors[0].begin()
    assert request is not None
    request.set_input("x", vector(0))
    request.submit()  # the others never do
    request.cancel("not wanted any more")
    with pytest.raises(ExecutionError, match=r"host 'a' \(rank 0\): not wanted any more"):
        request.finish()
    for executor in executors[1:]:
        with pytest.raises(ExecutionError, match="not wanted any more"):
            executor.run()


def test_a_rank_that_ends_the_job_ends_it_for_all(library: str) -> None:
    transports = local_transports(3)
    executors = [Executor(libtvm_path(), library, BUNDLE, transport=each) for each in transports]
    executors[0].set_input("x", vector(0))
    threading.Timer(0.05, lambda: transports[1].abort("host 'b' is on fire")).start()
    for executor in executors[:2]:  # the third one never comes
        with pytest.raises(ExecutionError, match="host 'b' is on fire"):
            executor.run()
        with pytest.raises(ExecutionError, match="on fire; start the job again"):
            executor.run()
