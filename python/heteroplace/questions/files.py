"""A solution -> files: itself, its timeline as a trace, and the page that shows it."""

from __future__ import annotations

import os

from heteroplace.files.output import write_text
from heteroplace.files.solution_file import solution_to_json
from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Timeline
from heteroplace.report.chrome_trace import TraceRun, write_trace
from heteroplace.report.html.content import Measured
from heteroplace.solve.solve_report import write_report


def save(solution: Solution, path: str | os.PathLike[str]) -> None:
    """Write the plan with all it refers to, so that `load_solution` returns an equal solution."""
    write_text(solution_to_json(solution), path)


def trace(solution: Solution, path: str | os.PathLike[str]) -> None:
    """Write the simulated timeline as a Chrome trace, for https://ui.perfetto.dev."""
    runs = [TraceRun("predicted", solution.plan, solution.timeline)]
    write_trace(path, solution.graph, solution.cluster, runs)


def report(
    solution: Solution, path: str | os.PathLike[str], *, measured: Timeline | None, command: str
) -> None:
    """Write the page of a solution."""
    measured_run = None if measured is None else Measured(measured)
    write_report(solution, path, measured=measured_run, command=command)
