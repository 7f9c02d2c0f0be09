"""What commands call a plan: whichever file it is in and whatever asks, it is the same solution."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from heteroplace.cli.main import main, make_parser
from heteroplace.cli.open_solution import read_solution
from heteroplace.files.cluster_file import cluster_to_json
from heteroplace.files.costs_file import costs_to_json
from heteroplace.files.graph_file import graph_to_json
from heteroplace.files.plan_file import plan_to_json
from heteroplace.model.solution import Solution
from heteroplace.parts.routing.solve.routed_replay import replay_routed
from heteroplace.solve.problem import SolveOptions
from tests.strategies import Instance
from tests.unit.files.test_solution import with_targets
from tests.unit.model.test_check_guards import ROWS, ROWS_PLAN, cluster, costs, plan_of

OF_PLAN = ["--graph", "graph.json", "--cluster", "cluster.json", "--costs", "costs.json"]


@pytest.fixture
def routed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Solution:
    """A plan of a routed network; it and all it refers to are files of the current folder."""
    monkeypatch.chdir(tmp_path)
    case = with_targets(Instance(ROWS, cluster(), costs(ROWS)))
    text = "\n".join(line for line in ROWS_PLAN.splitlines() if not line.startswith("load"))
    plan = replace(plan_of(ROWS, text), cluster_digest=case.cluster.digest())
    found = replay_routed(case.graph, case.cluster, case.costs, SolveOptions(), plan)
    values = {
        "graph": graph_to_json(case.graph),
        "cluster": cluster_to_json(case.cluster),
        "costs": costs_to_json(case.costs, case.graph, case.cluster),
        "plan": plan_to_json(plan, case.graph, case.cluster),
    }
    for name, value in values.items():
        Path(f"{name}.json").write_text(json.dumps(value))
    return found


def test_a_plan_of_a_routed_network_is_judged_by_an_average_run(routed: Solution) -> None:
    arguments = make_parser().parse_args(["explain", "plan.json", "--op", "x", *OF_PLAN])
    found = read_solution("plan.json", arguments)
    assert found.plan.steps == routed.plan.steps
    assert (found.objective_ns, found.bound_ns) == (routed.objective_ns, routed.bound_ns)
    assert found.singles == routed.singles


@pytest.mark.parametrize(
    "command",
    [
        ["explain", "plan.json", "--op", "*"],
        ["diff", "plan.json", "plan.json"],
        ["simulate", "plan.json", "--scale-link", "*=2"],
        ["report", "plan.json"],
    ],
)
def test_each_command_takes_such_a_plan(
    routed: Solution, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    code = main([*command, *OF_PLAN])
    assert code == 0, capsys.readouterr().err
