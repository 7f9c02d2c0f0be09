"""What a reader is told first: devices without work, together where the reason is one."""

from __future__ import annotations

from tests.instances import cpu, instance, problem_of

from heteroplace.report.notes import notes_text, solution_notes
from heteroplace.solve import SolveOptions, solve_network


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
