"""What a reader is told first: devices without work, together where the reason is one."""

from __future__ import annotations

import pytest

from heteroplace.report.notes import notes_text, solution_notes
from heteroplace.solve import SolveOptions, solve_network
from tests.instances import cpu, gpus, instance, problem_of


def test_devices_without_work_are_told_together_and_why() -> None:
    # A chain of two tasks: all cores take half the time of one.
    case = instance([("a", "b")], {"a": (4, 4, 2), "b": (6, 6, 3)}, cpu())
    solution = solve_network(problem_of(case), SolveOptions(), solver="single")
    told = solution_notes(solution)[0]
    assert told == "cpu.0, cpu.1 get no task: none is faster there than where it is."
    assert notes_text(solution).splitlines()[0] == f"note: {told}"


def test_a_device_that_can_run_nothing_says_why_and_one_that_is_faster_is_counted() -> None:
    case = instance([("a", "b")], {"a": (4, None, 9), "b": (6, None, 3)}, cpu())
    solution = solve_network(problem_of(case), SolveOptions(), solver="single")
    assert solution.devices_used == ("cpu.0",)
    assert solution_notes(solution)[:2] == [
        "cpu.1 gets no task: no task can run there: forced elsewhere.",
        "cpu.all gets no task: 1 of 2 are faster there than where they are, but what the solver "
        "tried with them there gained nothing, or not enough.",
    ]


@pytest.mark.parts
def test_a_rate_says_how_many_requests_it_needs_and_where_the_plans_order_counts() -> None:
    # Two tasks of 6 ns, one on each device: 12 ns a run, an item every 6.
    pair = gpus({(0, 1): 10**6, (1, 0): 10**6}, 2)  # where a copy takes 1 ns
    for machine, times, expected in (
        (cpu(), (6, 6, 12), ["needs 3 requests in flight."]),
        (pair, (6, 6), ["needs 4 requests in flight.", "`heteroplace simulate --batch 8` tells."]),
    ):
        case = instance([("a", "b")], {"a": times, "b": times}, machine)
        options = SolveOptions(objective="throughput", min_gain_ratio=0)
        solution = solve_network(problem_of(case), options, solver="throughput")
        told = [note for note in solution_notes(solution) if "request" in note]
        assert told[0].startswith("An item every 6 ns ")
        assert all(note.endswith(end) for note, end in zip(told, expected, strict=True))
