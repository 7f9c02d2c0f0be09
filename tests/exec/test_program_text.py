"""The text form of a program: what is refused, and how the message says so."""

from __future__ import annotations

import executor_programs as programs
import pytest
from executor_programs import make_executor, write_program

from heteroplace.errors import ArtifactError, ExecutionError

pytestmark = pytest.mark.timeout(60)

CALL = "call 0 1 1 1 8,0 -"
"""twice(x0) -> slot 0 on queue 0, step 1."""

HUGE = "\n".join(f"tensor {9 + i} 0 external - 0 8 {1 << 59}" for i in range(3))
"""Tensors of which each could be there, but not all."""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("heteroplace-program 1", "heteroplace-program 9", "line 1: .*version 9.*reads version 1"),
        ("heteroplace-program 1", "graph", "line 1: expected 'heteroplace-program 1', got 'graph'"),
        ("space 0 ram 1 0 8192", "space 1 ram 1 0 8192", "expected space 0, got '1'"),
        ("space 0 ram 1 0 8192", "space 0 ram 1 0 80", "tensor 0 ends at byte 1024 of space 'ram'"),
        ("space 0 ram 1 0 8192", "space 0 ram 3 0 8192", "device type 3"),
        ("space 0 ram 1 0 8192", "space 0 ram 1 1 8192", "cpu:1"),
        ("space 0 ram 1 0 8192", 'space 0 "ram 1 0 8192', "no closing quote"),
        ("queue 0 q0 cpu 1 0 0 0", "queue 0 q0 cpu 1 0 0 -", "needs exactly one"),
        ("queue 0 q0 cpu 1 0 0 0", "queue 0 q0 tpu 1 0 0 0", "queue kind 'tpu'"),
        ("queue 0 q0 cpu 1 0 0 0", "queue 0 q0 cpu 1 0 1 0", "space of a queue: got 1"),
        ("queue 0 q0 cpu 1 0 0 0", "queue 0 q0 copy 1 0 -1 0", "copy queue 'q0' runs no kernels"),
        ("queue 0 q0 cpu 1 0 0 0", "queue 0 q0 cuda 1 0 0 0", "of kind cuda is on cpu:0"),
        ("tensor 0 0 arena", "workspace 1 64\ntensor 0 0 arena", "queue: .*1"),
        ("tensor 0 0 arena", "workspace 0 -1\ntensor 0 0 arena", "bytes: got -1"),
        ("tensor 0 0 arena 0", "tensor 0 0 arena 32", "no multiple of 64"),
        ("tensor 0 0 arena 0", "tensor 0 0 heap 0", "storage 'heap'"),
        ("tensor 0 0 arena 0", "tensor 0 0 constant 0", "none is declared before this line"),
        ("tensor 0 0 arena 0 2 32 256", "tensor 0 0 arena 0 2 8 256", "code 2 and 8 bits"),
        ("tensor 0 0 arena 0 2 32 256", "tensor 0 0 arena 0 2 32", "8 fields.*got 7 fields"),
        ("input x0 8", "input x0 8\ninput x0 8", "'x0' appears twice"),
        (CALL, "call 0 1 7 1 8,0 -", "kernel: got 7, expected 0 to 1"),
        (CALL, 'step 1 "add"', "expected step 0, got '1'"),
        (CALL, "step 0", r"expected 'step <id> <name>' \(3 fields\), got 2 fields"),
        (CALL, "call 0 1 1 1 8,99 -", "tensor id: got 99"),
        (CALL, "call 0 1 1 1 8,x -", "expected an integer, got 'x'"),
        (CALL, "call 0 1 1 1 8,0 1", "expected <queue>:<count>"),
        (CALL, "call 0 1 1 1 8,0 0:1", "queue 'q0' waits for itself"),
        (CALL, "call 0 1 1 2 8,0 -", "2 threads and 0 joins"),
        (CALL, CALL + "\njump 1", "unknown word 'jump'"),
        (
            "tensor 8 0 external - 2 32 256",
            "constant 0 0 0 1024\ntensor 8 0 constant 0 2 32 256",
            "input 'x0' is tensor 8, a constant",
        ),
        (
            "input x0 8",
            "input x0 8\n" + HUGE,
            "space 'ram' would have to hold more than",
        ),
        ("input x0 8", "input x0 8\noutput y 3", "output 'y' is tensor 3, which no instruction"),
        ("\nend", "\nend\nend", "text after 'end'"),
        ("\nend", "", "truncated"),
    ],
)
def test_malformed_program_is_refused(library: str, old: str, new: str, message: str) -> None:
    text = write_program(("cpu",), [CALL])
    assert text.count(old) >= 1
    with pytest.raises(ArtifactError, match=message):
        make_executor(library, text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("instructions", "message"),
    [
        (["call 0 0 1 1 8,0 1:3", CALL], "first 3 instructions of queue 'q1', which has 0"),
        (["call 0 0 1 1 8,0 1:1", "call 1 0 1 1 8,1 0:1"], "would deadlock: .*'q0'.*'q1'"),
        (
            ["call 0 0 1 1 8,0 1:2", "call 1 0 1 1 8,1 -", "call 1 0 1 1 8,2 0:1"],
            "would deadlock",
        ),
        (["call 0 0 1 2 8,0 1:1", "join 1 0 0 0 -"], "would deadlock"),
        (["call 0 0 1 3 8,0 -", "join 1 0 0 0 -", "join 1 0 0 0 -"], "'q1' joins one call twice"),
        (["call 0 0 1 1 8,0 -", "join 1 0 0 0 -"], "no call or group with several threads"),
        (["call 0 0 1 2 8,0 -", "join 1 0 0 5 -"], "instruction 5 of queue 'q0', which has 1"),
        (["call 0 0 1 2 8,0 -", "join 0 0 0 0 -"], "joins itself"),
    ],
)
def test_program_that_cannot_finish_is_refused(
    library: str, instructions: list[str], message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        make_executor(library, write_program(("cpu", "cpu"), instructions))


def test_team_on_an_asynchronous_queue_is_refused(library: str) -> None:
    with pytest.raises(ArtifactError, match="only cpu queues have teams"):
        make_executor(library, write_program(("fake:0",), ["call 0 0 1 2 8,0 -"]))


def test_two_workers_on_one_core_are_refused(library: str) -> None:
    text = write_program(("cpu", "cpu"), [CALL]).replace("q1 cpu 1 0 0 1", "q1 cpu 1 0 0 0")
    with pytest.raises(ArtifactError, match="'q0' and 'q1' share core 0"):
        make_executor(library, text)


def test_core_that_does_not_exist_is_named(library: str) -> None:
    text = write_program(("cpu",), [CALL]).replace("q0 cpu 1 0 0 0", "q0 cpu 1 0 0 1000")
    with pytest.raises(ExecutionError, match="queue 'q0' needs core 1000"):
        make_executor(library, text)


def test_copy_between_sizes_is_refused(library: str) -> None:
    text = write_program(("cpu",), ["copy 0 0 8 0 -"]).replace("arena 0 2 32 256", "arena 0 2 32 8")
    with pytest.raises(ArtifactError, match="from 1024 bytes to 32 bytes"):
        make_executor(library, text)


def test_missing_kernel_is_named(library: str) -> None:
    text = write_program(("cpu",), [CALL]).replace("kernel 1 twice", "kernel 1 thrice")
    with pytest.raises(ArtifactError, match="does not have kernel 'thrice'"):
        make_executor(library, text)


def test_missing_library_is_named() -> None:
    with pytest.raises(ArtifactError, match=r"cannot load kernels from '/none\.so'"):
        make_executor("/none.so", write_program(("cpu",), [CALL]))


def test_an_empty_program_is_refused(library: str) -> None:
    with pytest.raises(ArtifactError, match="the program is empty"):
        make_executor(library, "")


def test_quoted_names_may_hold_spaces(library: str) -> None:
    text = write_program(("cpu",), [CALL]).replace("input x0", 'input "the \\"x\\" 0"')
    executor = make_executor(library, text)
    assert executor.inputs[0].name == 'the "x" 0'


def test_comments_and_blank_lines_are_skipped(library: str) -> None:
    text = write_program(("cpu",), [CALL]).replace("input x0", "# a note\n\ninput x0")
    assert make_executor(library, text).inputs == (("x0", "float32", (programs.EXTENT,)),)


def test_gpu_that_is_missing_is_named(library: str) -> None:
    if programs.tvm.cuda(0).exist:
        pytest.skip("this machine has a GPU")
    text = write_program(("cpu",), [CALL]).replace("queue 0", "space 1 gpu 2 0 64\nqueue 0", 1)
    with pytest.raises(ExecutionError, match="needs cuda:0; this machine has no NVIDIA"):
        make_executor(library, text)
