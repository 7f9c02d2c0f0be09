"""Numbers on the page in a real browser: of what a time is, and bytes that are copied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.browser import see
from tests.instances import gpus, instance

from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.model.solution import RunTime, Solution
from heteroplace.report.html.content import Measured, MeasuredTime
from heteroplace.solve.report import write_report

TIMES = """
return all("#headline tbody tr").map((row) =>
  [...row.children].slice(0, 4).map((cell) => cell.innerText.trim()));
"""
EDGES = """
return { edges: all("#graph svg path > title").map((node) => node.textContent),
  out: all("#graph details tbody tr").map((row) => row.lastChild.innerText.trim()) };
"""

pytestmark = pytest.mark.costly


def two_tasks() -> Solution:
    """Two tasks on two devices, a copy between: 11 ns, in a steady state 6 ns per item."""
    cluster = gpus({(0, 1): 10, (1, 0): 10}, 2)
    case = instance([("a", "b")], {"a": (5, 9), "b": (9, 5)}, cluster)
    steps = (Run(0, 0), Copy(0, 0, 1, cluster.route(0, 1)), Run(1, 1))
    plan = Plan(case.graph.digest(), cluster.digest(), steps, "by hand")
    singles = (("gpu0", 14), ("gpu1", 14))
    return Solution(case.graph, cluster, case.costs, plan, 11, 6, singles=singles, item_ns=6)


def test_measured_runs_of_a_plan_for_throughput_are_not_told_per_item(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    measured = Measured(
        time=MeasuredTime("this plan", 20, 18, 22), peers=(MeasuredTime("stock TVM", 40, 38, 42),)
    )
    solution = replace(two_tasks(), expected=RunTime(12, 11, 13))
    write_report(solution, path, measured=measured)
    assert see(path, TIMES).found == [
        ["this plan", "predicted", "6.00 ns per item", "1.00x"],
        ["this plan, disturbed as measured", "predicted", "12.0 ns, a run of one item", "-"],
        ["this plan", "measured", "20.0 ns, a run of one item", "1.00x"],
        ["all on gpu0", "predicted", "14.0 ns per item", "2.33x"],
        ["all on gpu1", "predicted", "14.0 ns per item", "2.33x"],
        ["stock TVM", "measured", "40.0 ns, a run of one item", "2.00x"],
        ["lower bound", "proven", "6.00 ns per item", "1.00x"],
    ]
