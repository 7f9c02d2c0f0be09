"""A solution -> files: itself, and its timeline as a trace."""

from __future__ import annotations

import os

from heteroplace.files.output import write_text
from heteroplace.files.solution_file import solution_to_json
from heteroplace.model.solution import Solution
from heteroplace.report.chrome_trace import TraceRun, write_trace


def save(solution: Solution, path: str | os.PathLike[str]) -> None:
    """Write the plan with all it refers to, so that `load_solution` returns an equal solution."""
    write_text(solution_to_json(solution), path)


def trace(solution: Solution, path: str | os.PathLike[str]) -> None:
    """Write the simulated timeline as a Chrome trace, for https://ui.perfetto.dev."""
    runs = [TraceRun("predicted", solution.plan, solution.timeline)]
    write_trace(path, solution.graph, solution.cluster, runs)
