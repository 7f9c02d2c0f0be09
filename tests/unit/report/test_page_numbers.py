"""Numbers on the page in a real browser: of what a time is, and bytes that are copied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.model.solution import RunTime, Solution
from heteroplace.report.html.content import Measured, MeasuredTime
from heteroplace.solve.solve_report import write_report
from tests.browser import see
from tests.instances import gpus, instance
from tests.unit.report.test_explicit_plans import training_step

TIMES = """
const cells = (row) => [...row.children].map((cell) => cell.innerText.trim());
const content = (node) =>
  [node.querySelector(".caption").innerText, ...[...node.querySelectorAll("tbody tr")].map(cells)];
return { tables: all("#headline .body .table").map(content),
  bars: all("#times li").map((bar) => bar.innerText.trim().split("\\n")) };
"""
BUSY = """
return all("#machine tbody")[0].innerText.trim().split("\\n").map((row) => row.split("\\t")[5]);
"""
VERDICT = """return $("#answer-prediction").innerText;"""
EDGES = """
return { edges: all("#graph svg path > title").map((node) => node.textContent),
  out: all("#graph details tbody tr").map((row) => row.lastChild.textContent) };
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
    result = see(path, TIMES).found
    assert result["tables"] == [
        [
            "Predicted times per item",
            ["this plan", "6.00 ns", "1.00"],
            ["all on gpu0", "14.0 ns", "2.33"],
            ["all on gpu1", "14.0 ns", "2.33"],
            ["lower bound (proven)", "6.00 ns", "1.00"],
        ],
        [
            "Measured times of a run",
            ["this plan", "20.0 ns", "1.00"],
            ["stock TVM", "40.0 ns", "2.00"],
        ],
    ]
    assert result["bars"] == [
        ["Predicted", "12.0 ns"],
        ["Measured", "20.0 ns"],
        ["stock TVM, measured", "40.0 ns"],
    ]


def test_a_tensor_is_copied_once_however_many_read_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    cluster = gpus({(src, dst): 10 for src in range(3) for dst in range(3) if src != dst}, 3)
    readers = {"near/0": 0} | {f"far/{number}": 1 + number % 2 for number in range(24)}
    names = ("first/0", *readers, "last/0")  # as many as are shown as layers, by their paths
    devices = (0, *readers.values(), 2)
    edges = [("first/0", name) for name in names[1:]]
    case = instance(edges, dict.fromkeys(names, (5,) * 3), cluster)
    copies = tuple(Copy(0, 0, dst, cluster.route(0, dst)) for dst in (1, 2))
    runs = tuple(Run(task, device) for task, device in enumerate(devices))
    steps = (runs[0], *copies, *runs[1:])
    plan = Plan(case.graph.digest(), cluster.digest(), steps, "by hand")
    write_report(Solution(case.graph, cluster, case.costs, plan, 71, 0), path)
    assert see(path, EDGES).found == {
        "edges": [
            "first to near: 10.0 B, 0 B copied",
            "first to far: 10.0 B, 10.0 B copied",
            "first to last: 10.0 B, 10.0 B copied",
        ],
        "out": ["20.0 B", "0 B", "0 B", "0 B"],
    }


@pytest.mark.parametrize("engines, busy", [(None, "204 ns"), (2, "3.00 ns")])
def test_a_collective_that_leaves_its_devices_free_is_no_time_of_theirs(
    tmp_path: Path, engines: int | None, busy: str
) -> None:
    path = tmp_path / "page.html"
    case, plan, _ = training_step()
    devices = tuple(replace(device, copy_engines=engines) for device in case.cluster.devices)
    cluster = replace(case.cluster, devices=devices)
    costs = replace(case.costs, devices=cluster.identities)
    plan = replace(plan, cluster_digest=cluster.digest())
    write_report(Solution(case.graph, cluster, costs, plan, 204, 0), path)
    assert see(path, BUSY).found == [busy, busy]


@pytest.mark.parametrize("of", ["rounds", "runs"])
def test_the_verdict_says_how_much_longer_than_predicted_it_was(tmp_path: Path, of: str) -> None:
    path = tmp_path / "page.html"
    solution = replace(two_tasks(), item_ns=None)
    write_report(solution, path, measured=Measured(time=MeasuredTime("plan", 22, 18, 30, of)))
    expected = f"({of} 18 ns to 30 ns), predicted 11 ns: 100.0 % longer than predicted."
    assert see(path, VERDICT).found.replace(".0 ns", " ns").endswith(expected)
