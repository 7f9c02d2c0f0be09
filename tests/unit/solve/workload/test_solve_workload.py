"""Placements of workloads against all placements of small ones, and their memory rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from heteroplace.errors import HeteroPlaceError, InfeasibleError, SolverError, SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.model.graph import Task
from heteroplace.simulate.simulator import simulate
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.solve.workload.solve_workload import solve_workload
from heteroplace.solve.workload.workload import Entry, Workload
from heteroplace.solve.workload.workload_search import Placed, WorkloadSearch
from heteroplace.solve.workload.workload_state import WorkloadTimes
from tests.dags import PAIR, chain_of
from tests.instances import given_costs
from tests.strategies import exact_cases
from tests.workloads import every_placement, workloads

_OPTIONS = SolveOptions(iterations=400, time_limit_s=60, threads=1)


@given(workloads())
@exact_cases(50)
def test_finds_the_best_of_all_placements(workload: Workload) -> None:
    times = WorkloadTimes(workload)
    valid = [value for _, value in every_placement(times) if value.excess_bytes == 0]
    if not valid:
        with pytest.raises((InfeasibleError, SolverLimitError)):
            solve_workload(workload, _OPTIONS)
        return
    result = solve_workload(workload, _OPTIONS)
    best_ns = min(value.objective_ns for value in valid)
    assert result.bound_ns <= result.objective_ns <= best_ns


@given(workloads())
@exact_cases(50)
def test_a_search_ends_with_the_best_that_it_has_seen(workload: Workload) -> None:
    times = WorkloadTimes(workload)
    placed = [Placed(sites, value) for sites, value in every_placement(times)]
    best, worst = (
        choose(placed, key=lambda each: (each.value.excess_bytes, each.value.objective_ns))
        for choose in (min, max)
    )
    search = WorkloadSearch(times, worst, seed=0, penalty=1000.0)
    end = search.run(Deadline.after(60), 300)
    assert end.value == times.value(end.sites)
    assert not worst.value.is_better(end.value)
    assert not end.value.is_better(best.value)


@given(workloads())
@exact_cases(50)
def test_plans_are_valid_and_take_what_the_result_says(workload: Workload) -> None:
    try:
        result = solve_workload(workload, _OPTIONS)
    except HeteroPlaceError:
        return
    total_ns, weights = 0, [{} for _ in workload.cluster.memories]
    for entry, placed in zip(workload.entries, result.entries, strict=True):
        problem = entry.problem
        check_plan(problem.graph, problem.cluster, problem.costs, placed.plan)
        timeline = simulate(problem.graph, problem.cluster, problem.costs, placed.plan)
        assert timeline.makespan_ns == placed.objective_ns
        total_ns += entry.calls * timeline.makespan_ns
        for task, device in enumerate(placed.plan.placement(len(problem.graph.tasks))):
            own = weights[problem.cluster.devices[device].memory]
            own[entry.name, task] = int(entry.own_bytes[task])
            own.update(entry.weights[task])
    assert total_ns == result.objective_ns
    assert tuple(sum(own.values()) for own in weights) == result.weight_bytes
    sizes = dict(zip(workload.names, workload.sizes.tolist(), strict=True))
    for name in (each for each in workload.states if sizes[each]):
        assert sum(name in own for own in weights) <= 1


def _pair(
    capacity: int, calls: tuple[int, int], *, states: frozenset[str] = frozenset()
) -> Workload:
    """Two entries of a chain of two tasks of 10 bytes each, quicker on the second device."""
    graph = chain_of(Task("a", "op", weight_bytes=10), Task("b", "op", weight_bytes=10))
    memories = tuple(
        replace(each, bytes=size)
        for each, size in zip(PAIR.memories, (1000, capacity), strict=True)
    )
    cluster = replace(PAIR, memories=memories)
    weights = ((("wa", 10),), (("wb", 10),))
    entries = []
    for name, times, count in (("token", (100, 10), calls[0]), ("prompt", (1000, 900), calls[1])):
        costs = given_costs(graph, cluster, {"a": times, "b": times})
        entries.append(Entry(name, Problem(graph, cluster, costs), count, weights))
    return Workload(tuple(entries), states)


def test_weights_that_entries_share_are_there_once() -> None:
    # Both weights, each once, and a byte of each tensor of both entries.
    result = solve_workload(_pair(24, (1, 1)), _OPTIONS)
    assert result.weight_bytes == (0, 20)
    assert result.objective_ns == 2 * 10 + 2 * 900


def test_calls_say_what_the_short_memory_is_for() -> None:
    graph = chain_of(Task("a", "op", weight_bytes=10), Task("b", "op", weight_bytes=10))
    memories = (replace(PAIR.memories[0], bytes=1000), replace(PAIR.memories[1], bytes=15))
    cluster = replace(PAIR, memories=memories)
    weights = ((("wa", 10),), (("wb", 10),))
    gains = {"token": {"a": (100, 10), "b": (100, 99)}, "prompt": {"a": (500, 499), "b": (500, 10)}}

    def placed(token: int, prompt: int) -> set[str]:
        entries = tuple(
            Entry(name, Problem(graph, cluster, given_costs(graph, cluster, times)), count, weights)
            for (name, times), count in zip(gains.items(), (token, prompt), strict=True)
        )
        result = solve_workload(Workload(entries), _OPTIONS)
        return {
            graph.tasks[task].name
            for each in result.entries
            for task, device in enumerate(each.plan.placement(2))
            if device == 1
        }

    assert placed(100, 1) == {"a"}
    assert placed(1, 100) == {"b"}


def test_state_lies_in_one_memory() -> None:
    apart = _pair(1000, (1, 1))
    costs = [
        given_costs(apart.entries[0].problem.graph, apart.cluster, {"a": way, "b": way})
        for way in ((1, 50), (50, 1))
    ]
    entries = tuple(
        replace(entry, problem=replace(entry.problem, costs=own))
        for entry, own in zip(apart.entries, costs, strict=True)
    )
    assert solve_workload(Workload(entries), _OPTIONS).objective_ns == 4
    together = solve_workload(Workload(entries, frozenset({"wa", "wb"})), _OPTIONS)
    assert together.objective_ns == 102


def test_all_weights_must_fit() -> None:
    workload = _pair(5, (1, 1))
    memories = tuple(replace(each, bytes=14) for each in workload.cluster.memories)
    cluster = replace(workload.cluster, memories=memories)
    entries = tuple(
        replace(entry, problem=replace(entry.problem, cluster=cluster))
        for entry in workload.entries
    )
    assert solve_workload(Workload(entries), _OPTIONS).weight_bytes == (10, 10)
    small = replace(cluster, memories=(memories[0], replace(memories[1], bytes=5)))
    entries = tuple(
        replace(entry, problem=replace(entry.problem, cluster=small)) for entry in workload.entries
    )
    with pytest.raises(HeteroPlaceError, match="Weights and state take 20 B, each once"):
        solve_workload(Workload(entries), _OPTIONS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"calls": 0}, "has 0 calls; expected at least 1"),
        ({"weights": ((("wa", 10),), (("wb", 9),))}, "weight 'wb' has"),
        ({"weights": ((("wa", 10),), (("wb", 10), ("wc", 1)))}, "shares more weights than it has"),
    ],
)
def test_refuses_wrong_entries(change: dict[str, object], message: str) -> None:
    workload = _pair(100, (1, 1))
    with pytest.raises(SolverError, match=message):
        Workload((workload.entries[0], replace(workload.entries[1], **change)))


def test_refuses_no_entries_and_other_memories() -> None:
    with pytest.raises(SolverError, match="a workload has no entries"):
        Workload(())
    with pytest.raises(SolverError, match="different memories"):
        Workload((_pair(10, (1, 1)).entries[0], _pair(11, (1, 1)).entries[1]))


def test_equal_parts_of_entries_have_equal_layers() -> None:
    times = WorkloadTimes(_pair(100, (1, 1)))
    for own in times.layers:
        np.testing.assert_array_equal(own, [1, 2])
    assert times.num_layers == 3
