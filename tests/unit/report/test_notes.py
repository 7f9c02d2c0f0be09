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
