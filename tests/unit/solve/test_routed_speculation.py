"""Predicted branches in plans: what they gain by the costs, and which of them stay."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import integers

from heteroplace.errors import InfeasibleError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import guard_of
from heteroplace.model.routed.decision import decision_of
from heteroplace.model.routed.speculation import Prediction, SpeculationGain
from heteroplace.model.solution import Solution
from heteroplace.parts.routing.solve import routed_network
from heteroplace.parts.routing.solve.routed_expectation import NUM_DECISIONS, assumed_profile
from heteroplace.parts.routing.solve.routed_network import solve_routed
from heteroplace.simulate.decisions import expected_ns, sampled_decisions
from heteroplace.simulate.simulator import simulate
from heteroplace.solve.problem import SolveOptions
from tests.instances import cpu
from tests.routed_plans import (
    RoutedCase,
    layer_graph,
    predictable,
    random_speculated_plan,
    routed_plans,
)
from tests.strategies import exact_cases

OPTIONS = SolveOptions(time_limit_s=5, min_gain_ratio=0.0)


def cores(count: int) -> Cluster:
    both = cpu()
    return replace(both, devices=both.devices[:count])


def whole_tensors(device: str | None = None, branches: int = 2) -> TaskGraph:
    """A router of 10 in front of branches of 20, which are one task in all but name."""
    graph = layer_graph(num_cells=1, capacities=((1,),) * branches)
    devices = None if device is None else (device,)
    tasks = [replace(task, devices=devices) if task.branch else task for task in graph.tasks]
    return replace(graph, tasks=tuple(tasks))


def costs_of(graph: TaskGraph, cluster: Cluster) -> CostTable:
    lengths = {task.name: 0 for task in graph.tasks} | {"r.route": 10_000}
    lengths |= {task.name: 20_000 for task in graph.tasks if task.name.endswith(".0")}
    return build_table(graph, cluster, lambda task, _: Cost.given(lengths[graph.tasks[task].name]))


def solved(graph: TaskGraph, cluster: Cluster, probability: float | None) -> Solution:
    prediction = Prediction("r", (0,), probability)
    costs = costs_of(graph, cluster)
    return solve_routed(graph, cluster, costs, OPTIONS, predictions=[prediction])


def mean_ns(found: Solution, hits: int, misses: int) -> float:
    predicted = {each.prediction.router: each.prediction.branches for each in found.predictions}
    decisions = [
        decision_of(found.graph, {"r": loads}, predicted)
        for loads in [(1, 0)] * hits + [(0, 1)] * misses
    ]
    return expected_ns(found.graph, found.cluster, found.costs, found.plan, decisions)


def is_predicted(found: Solution) -> bool:
    return any(
        guard is not None and guard.when == "predicted" for guard in map(guard_of, found.plan.steps)
    )


@pytest.mark.costly(5)
@given(routed_plans(has_seats=True), integers(0, 2**32))
@exact_cases(100)
def test_predicted_branches_may_be_anywhere(case: RoutedCase, seed: int) -> None:
    """In nested routers too: what these decide is where a missed run needs it."""
    found = case.instance
    graph, cluster, costs = found.graph, found.cluster, found.costs
    plan = random_speculated_plan(Random(seed), graph, cluster)
    check_plan(graph, cluster, costs, plan)
    for decision in case.decisions:
        simulate(graph, cluster, costs, plan, decision=decision)


@pytest.mark.costly
def test_a_branch_is_begun_beside_its_router_on_two_cores() -> None:
    found = solved(whole_tensors(), cores(2), 0.9)
    (planned,) = found.predictions
    assert planned.gain == SpeculationGain(10_000, 0)
    assert planned.is_on and is_predicted(found)
    assert mean_ns(found, 9, 1) == 21_000
    assert mean_ns(found, 19, 1) == 20_500


@pytest.mark.costly
def test_one_core_has_nothing_to_gain() -> None:
    found = solved(whole_tensors(), cores(1), 0.99)
    assert found.predictions == () and not is_predicted(found)
    assert mean_ns(found, 9, 1) == 30_000
    asked = solved(whole_tensors(), cores(1), None)
    assert is_predicted(asked) and asked.predictions[0].is_on


@pytest.mark.costly
@pytest.mark.parametrize("probability", [None, 0.9])
@pytest.mark.parametrize("branches", [(0, 1), (0, 1, 2)])
def test_more_branches_may_be_predicted_than_a_cell_takes(
    branches: tuple[int, ...], probability: float | None
) -> None:
    """A hit then has begun one in vain."""
    graph, cluster = whole_tensors(branches=3), cores(2)
    graph = replace(graph, routers=(replace(graph.routers[0], top_k=1),))
    prediction = Prediction("r", branches, probability)
    costs = costs_of(graph, cluster)
    found = solve_routed(graph, cluster, costs, OPTIONS, predictions=[prediction])
    if probability is None:
        (planned,) = found.predictions
        assert planned.prediction == prediction and is_predicted(found)


@pytest.mark.costly
def test_a_miss_waits_for_what_cannot_be_stopped() -> None:
    """Branches have one core: the right one waits until the wrong one, begun before, has ended."""
    graph = whole_tensors("cpu.1")
    found = solved(graph, cores(2), 0.9)
    (planned,) = found.predictions
    assert planned.gain == SpeculationGain(10_000, 10_000)
    assert planned.gain.least_share == 0.5
    assert mean_ns(found, 9, 1) == 0.9 * 20_000 + 0.1 * 40_000
    assert "0.900 x 10.0 us > 0.100 x 10.0 us: yes" in planned.text()
    assert not is_predicted(solved(graph, cores(2), 0.5))


@pytest.mark.costly
def test_what_has_not_begun_when_its_router_decides_is_left_out() -> None:
    """Of two predicted branches on one core the second one is refuted in time."""
    graph = whole_tensors("cpu.1", branches=3)
    cluster = cores(2)
    prediction = Prediction("r", (0, 1), None)
    found = solve_routed(
        graph, cluster, costs_of(graph, cluster), OPTIONS, predictions=[prediction]
    )
    decision = decision_of(graph, {"r": (0, 0, 1)}, {"r": (0, 1)})
    taken = expected_ns(graph, cluster, found.costs, found.plan, [decision])
    assert taken == 40_000
    # Nor does it have to be listed behind its router, which is on another device.
    when = [getattr(guard_of(step), "when", "") for step in found.plan.steps]
    assert when.count("predicted") == 4
    order = sorted(range(len(when)), key=lambda number: when[number] != "predicted")
    plan = replace(found.plan, steps=tuple(found.plan.steps[number] for number in order))
    check_plan(graph, cluster, found.costs, plan)
    assert expected_ns(graph, cluster, found.costs, plan, [decision]) == 40_000


def test_what_is_assumed_where_nothing_was_recorded() -> None:
    graph = whole_tensors(branches=3)
    (said,) = assumed_profile(graph, [Prediction("r", (1,), 0.75)]).routers
    assert said.active_sets == (((0,), 125), ((1,), 750), ((2,), 125))
    assert said.loads == (((0, 875), (1, 125)), ((0, 250), (1, 750)), ((0, 875), (1, 125)))
    (sure,) = assumed_profile(graph, [Prediction("r", (0, 1, 2), 0.0)]).routers
    assert sure.active_sets == tuple(((branch,), 334) for branch in range(3))
    (even,) = assumed_profile(graph, []).routers
    assert [even.activation(branch) for branch in range(3)] == pytest.approx([1 / 3] * 3)
    (rows,) = assumed_profile(layer_graph(), []).routers
    assert rows.active_sets == (((0, 1, 2), 1000),)
    assert [rows.mean_load(branch) for branch in range(3)] == [4, 4, 4]  # 6 cells, two of 3 each


@pytest.mark.costly
def test_where_only_a_plan_without_predictions_fits_none_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = routed_network._solved

    def solve(*asked: Any) -> Solution:
        if asked[-1]:
            raise InfeasibleError("no room for branches that are begun early")
        return real(*asked)

    monkeypatch.setattr(routed_network, "_solved", solve)
    found = solved(whole_tensors(), cores(2), 0.9)
    assert found.predictions == () and not is_predicted(found)
    with pytest.raises(InfeasibleError, match="no room"):
        solved(whole_tensors(), cores(2), None)  # as asked


@pytest.mark.costly(5)
@given(routed_plans(), integers(0, 2**32))
@exact_cases(60)
def test_no_predictions_are_made_that_together_take_longer(case: RoutedCase, seed: int) -> None:
    """Each may pay beside the others, in a plan that is longer than one without any."""
    random, one = Random(seed), case.instance
    graph, cluster, costs = one.graph, one.cluster, one.costs
    told = {
        graph.routers[router].name: Prediction(
            graph.routers[router].name, (branch,), random.choice((0.4, 0.7, 0.9))
        )
        for router, branch in predictable(graph)
    }
    predictions = list(told.values())
    profile = assumed_profile(graph, predictions)

    def average_ns(found: Solution) -> float:
        sets = {each.prediction.router: each.prediction.branches for each in found.predictions}
        decisions = sampled_decisions(graph, profile, NUM_DECISIONS, 0, sets)
        return expected_ns(graph, cluster, costs, found.plan, decisions)

    asked = graph, cluster, costs, OPTIONS, "heft", None
    found = solve_routed(*asked, predictions)
    assert average_ns(found) <= average_ns(solve_routed(*asked))
    assert bool(found.predictions) == is_predicted(found)
