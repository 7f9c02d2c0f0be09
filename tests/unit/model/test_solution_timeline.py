"""A solution simulates its plan once, whoever asks for the times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from heteroplace.model.cost import table_from_rows
from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Timeline
from heteroplace.report.tables import device_table
from heteroplace.simulate import simulator
from heteroplace.simulate.simulator import simulate
from tests.unit.questions.worked import diamond_solution


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Solution]:
    """The solutions that were simulated, in order."""
    simulated: list[Solution] = []
    simulate_solution = simulator.timeline_of

    def count(solution: Solution) -> Timeline:
        simulated.append(solution)
        return simulate_solution(solution)

    monkeypatch.setattr(simulator, "timeline_of", count)
    return simulated


def fresh() -> Solution:
    """A solution without a timeline yet, as one that is read from a file."""
    return replace(diamond_solution())


def test_all_answers_share_one_simulation(calls: list[Solution], tmp_path: Path) -> None:
    solution = fresh()
    str(solution.explain("c")[0])
    solution._repr_html_()
    solution.trace(tmp_path / "trace.json")
    solution.diff(solution)
    device_table(solution.graph, solution.cluster, solution.plan, solution.timeline)
    assert len(calls) == 1


def test_the_timeline_is_that_of_the_simulator() -> None:
    solution = fresh()
    given = solution.graph, solution.cluster, solution.costs, solution.plan
    assert solution.timeline == simulate(*given)


def test_a_solver_hands_its_timeline_on(calls: list[Solution]) -> None:
    solution = diamond_solution().with_others_cores(2.0)
    assert solution.others_cores == 2.0
    assert solution.timeline.makespan_ns == solution.predicted_ns
    assert calls == []


def test_a_changed_solution_is_simulated_again(calls: list[Solution]) -> None:
    solution = diamond_solution()
    rows = tuple(
        tuple(replace(cost, ns=2 * (cost.ns or 0)) for cost in row) for row in solution.costs.rows
    )
    costs = table_from_rows(solution.graph, solution.cluster, rows)
    slower = replace(solution, costs=costs)
    assert slower.timeline.makespan_ns > solution.timeline.makespan_ns
    assert calls == [slower]
