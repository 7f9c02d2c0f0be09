"""Branches done side by side: by which cores, what is recorded of them, and texts that are refused.

Random programs with groups are in `tests/cpp/check_branches.cc`.
"""

from __future__ import annotations

import numpy as np
import pytest
from executor_programs import make_executor, needs_two_cores
from test_routed_program import ADD, CELLS, TEXT, TWICE, routed_program, set_inputs, text_of

from heteroplace.errors import ArtifactError, ExecutionError
from heteroplace.lower.program import QueueInstruction
from tests.chrome_trace_model import checked, of

pytestmark = pytest.mark.timeout(60)

QUEUES = [pytest.param("cpu", marks=needs_two_cores), "fake"]


def grouped_text(kind: str) -> str:
    """As `routed_program`, with both branches in a group: of two cores, or on a fake device."""
    program = routed_program()
    first, second = program.queues
    *copies, twice = first.instructions
    (add,) = second.instructions
    add.waits = ()
    calls = [twice, add]
    threads = 2 if kind == "cpu" else 1
    group = QueueInstruction("group", 1, (str(threads), str(len(calls))))
    second.kind = kind
    if kind == "cpu":
        second.core = 1
        first.instructions[:] = [*copies, group, *calls]
        second.instructions[:] = [QueueInstruction("join", 1, ("0", str(len(copies))))]
    else:
        group.waits = ((0, len(copies)),)
        first.instructions[:] = copies
        second.instructions[:] = [group, *calls]
    return text_of(program)


@pytest.mark.parametrize("kind", QUEUES)
@pytest.mark.parametrize("is_traced", [False, True])
def test_branches_are_done_by_whoever_is_free(library: str, kind: str, is_traced: bool) -> None:
    executor = make_executor(library, grouped_text(kind), max_in_flight=2)
    decisions = [((2, 1), (0, 2)), ((0, 4), (0, 0)), ((0, 0), (0, 0)), ((1, 3), (3, 0))]
    if is_traced:
        executor.start_trace(None)
    for loads, offsets in 3 * decisions:
        y = set_inputs(executor, loads, offsets)
        executor.run()
        y[offsets[0] : offsets[0] + loads[0]] = 2 * y[offsets[0] : offsets[0] + loads[0]] + 1
        y[offsets[1] : offsets[1] + loads[1]] *= 2
        np.testing.assert_array_equal(executor.get_output("y"), y)
    if not is_traced:
        return
    trace = executor.stop_trace(None)
    checked(trace.chrome_trace())
    events = trace.events[trace.events["is_done"] == 1]
    assert len(events) == 3 * len(decisions) * sum(map(len, _steps_of(kind)))
    queue, first = (0, 6) if kind == "cpu" else (1, 1)
    for branch in range(2):
        own = events[(events["queue"] == queue) & (events["instruction"] == first + branch)]
        is_active = [loads[branch] > 0 for loads, _ in 3 * decisions]
        lasted = own["finish_ns"] > own["start_ns"]
        assert all(lasted[is_active])
        cores = set(own["core"][is_active].tolist())
        assert cores <= ({0, 1} if kind == "cpu" else {2, 3})
        assert set(own["core"][np.logical_not(is_active)].tolist()) == {-1}


def _steps_of(kind: str) -> tuple[range, range]:
    return (range(8), range(1)) if kind == "cpu" else (range(5), range(3))


@needs_two_cores
def test_a_row_of_each_core_has_what_it_did(library: str) -> None:
    executor = make_executor(library, grouped_text("cpu"))
    set_inputs(executor, (2, 2), (0, 2))
    executor.start_trace(None)
    for _ in range(50):
        executor.run()
    trace = executor.stop_trace(None)
    slices = of(checked(trace.chrome_trace(["copies", "branch 0", "branch 1"])), "X")
    assert {each["name"] for each in slices if each.get("cat") == "group"} == {
        "branches side by side"
    }
    for branch in range(2):
        rows = [each["tid"] for each in slices if each["name"] == f"branch {branch}"]
        own = trace.events[trace.events["instruction"] == 6 + branch]
        assert sorted(rows) == sorted((own["core"] + 1).tolist())


@pytest.mark.parametrize("kind", QUEUES)
def test_a_branch_that_fails_is_named_and_fails_its_run_alone(library: str, kind: str) -> None:
    executor = make_executor(library, grouped_text(kind))
    for loads, offsets, message in (
        ((5, 1), (0, 0), r"step 1 failed .* branch 0 of router 'moe' has 5 cells"),
        ((1, 2), (0, 3), r"step 2 failed .* in branch 1 of router 'moe' in kernel 'add'.*row 3 on"),
    ):
        set_inputs(executor, loads, offsets)
        with pytest.raises(ExecutionError, match=message):
            executor.run()
        x = set_inputs(executor, (0, 0), (0, 0))
        executor.run()
        np.testing.assert_array_equal(executor.get_output("y"), x)
    assert x.shape[0] == CELLS


ADD_0 = ADD.replace("branch_call 1", "branch_call 0").replace(" 0:5", " -")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("group 0 1 1 2 -", TWICE), "a group of 2 calls, and queue 'q0' has 1 instructions"),
        (("group 0 1 1 0 -", TWICE), "calls: got 0"),
        (("group 0 1 1 1", TWICE), "expected 'group .*6 fields"),
        (("group 0 1 2 1 -", TWICE), "the call has 2 threads and 0 joins"),
        (("group 1 1 2 1 -", TWICE), "only cpu queues have teams"),
        (("group 0 1 1 1 -", TWICE.replace(" -", " 1:1")), "has waits, which are the group's"),
        (
            ("group 0 1 1 1 -", TWICE.replace("active", "missed")),
            "where its branch is active alone",
        ),
        (("group 0 1 1 1 -", "copy 0 1 1 3 -", TWICE), "which is no branch_call"),
        (("group 0 1 1 3 -", TWICE, ADD_0, TWICE), "of branch 0, apart from the other calls"),
        (("group 0 1 1 1 -", "group 0 1 1 1 -", TWICE), "which is no branch_call"),
    ],
)
def test_groups_that_cannot_be_are_refused(
    library: str, lines: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        make_executor(library, TEXT.replace(TWICE, "\n".join(lines), 1))


def test_a_program_without_routers_has_no_groups(library: str) -> None:
    text = TEXT.replace("program 3", "program 1")
    lines = [line for line in text.splitlines() if not line.startswith(("router", "branch_"))]
    lines[-1:] = ["group 0 1 1 1 -", "end"]
    with pytest.raises(ArtifactError, match="unknown word 'group'"):
        make_executor(library, "\n".join(lines))
