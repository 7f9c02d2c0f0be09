"""Celeritas whole: fused, placed in two ways, expanded; the better of both."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from heteroplace.coarsen.breakpoints import fuse_segments
from heteroplace.coarsen.coarse import coarsen
from heteroplace.errors import SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.plan import Plan
from heteroplace.native.list import adjusting_placement, critical_path_order, order_place
from heteroplace.simulate.simulator import simulate
from heteroplace.solve import Problem, SolveOptions, get_solver
from heteroplace.solve.feasibility import overflow
from tests.instances import gpus, instance, problem_of
from tests.strategies import AMPLE
from zoo.graphs.catalogue import layered
from zoo.graphs.layered import Layered

CASES = [(seed, fill) for seed in range(4) for fill in (0.2, 0.6)]
TIGHT = [(6, 0.9), (0, 0.95), (5, 0.95)]
"""Where the groups fit nowhere, and the tasks do."""


def fused_plans(problem: Problem) -> tuple[list[tuple[int, ...]], list[Plan]]:
    """The groups of tasks, and the expanded plans of Order-Place and Adjusting Placement."""
    groups = fuse_segments(problem.graph, problem.cluster, problem.costs).groups
    coarse = coarsen(problem.graph, groups)
    costs = coarse.project_costs(problem.costs, problem.cluster)
    native = Problem(coarse.graph, problem.cluster, costs).native
    order = critical_path_order(native)
    plans = [order_place(native, order), adjusting_placement(native, order)]
    fitting = [plan for plan in plans if not plan.violation]
    found = [coarse.expand_plan(native.plan(p.steps, "one")) for p in fitting]
    # What lives inside the groups may not fit.
    return list(groups), [plan for plan in found if not any(overflow(problem, plan.steps))]


@pytest.mark.parametrize(("seed", "fill"), CASES)
def test_the_better_of_both_placements_of_the_groups_is_taken(seed: int, fill: float) -> None:
    problem = layered(Layered(120, seed=seed), fill=fill)
    graph, cluster, costs = problem.graph, problem.cluster, problem.costs
    found = get_solver("celeritas").solve(problem, SolveOptions())
    check_plan(graph, cluster, costs, found.plan)
    groups, plans = fused_plans(problem)
    spans = [simulate(graph, cluster, costs, plan).makespan_ns for plan in plans]
    assert found.objective_ns == min(spans)
    placement = found.plan.placement(len(graph.tasks))
    assert len(groups) < len(graph.tasks)
    assert all(len({placement[task] for task in group}) == 1 for group in groups)


@pytest.mark.parametrize(("seed", "fill"), TIGHT)
def test_tasks_are_placed_alone_where_their_groups_do_not_fit(seed: int, fill: float) -> None:
    problem = layered(Layered(120, seed=seed), fill=fill)
    assert fused_plans(problem)[1] == []
    found = get_solver("celeritas").solve(problem, SolveOptions())
    check_plan(problem.graph, problem.cluster, problem.costs, found.plan)
    alone = adjusting_placement(problem.native, critical_path_order(problem.native))
    assert found.objective_ns == alone.makespan_ns


@pytest.mark.parametrize(
    ("solver", "options"),
    [
        ("celeritas", SolveOptions()),
        ("heft", SolveOptions(coarsening="breakpoints")),
    ],
)
def test_tasks_are_not_fused_for_a_device_that_takes_no_single_items(
    solver: str, options: SolveOptions
) -> None:
    """Even tasks run on the CPU, odd ones on the GPU, all on a third device, in batches of four."""
    names = [f"t{i}" for i in range(48)]
    memories = tuple(Memory(f"m{i}", 10**9) for i in range(3))
    devices = (
        Device("cpu", "cpu", "", 0, 0, (0,)),
        Device("gpu", "cuda", "", 0, 1),
        Device("batcher", "ext_dev", "", 0, 2, batch_sizes=(4,)),
    )
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    links = tuple(Link(f"{a}-{b}", a, b, 10**9, 0, f"{a}-{b}") for a, b in pairs)
    cluster = Cluster("mixed", memories, devices, links)
    run_ns: dict[str, tuple[int | None, ...]] = {
        name: (None, 10, 1) if index % 2 else (10, None, 1) for index, name in enumerate(names)
    }
    case = instance(list(pairwise(names)), run_ns, cluster)
    found = get_solver(solver).solve(problem_of(case), options)
    assert found.objective_ns == 48 * 10 + 47 * 10


def one_way(capacity: int) -> Problem:
    """A chain that runs ten times as fast where there is little memory and no way back from."""
    cluster = gpus({(0, 1): 1}, 2)
    cluster = replace(cluster, memories=(Memory("large", AMPLE), Memory("small", capacity)))
    times = {name: (20, 2) for name in "abc"}
    return problem_of(instance([("a", "b"), ("b", "c")], times, cluster))


def test_a_plan_of_groups_that_lacks_a_copy_is_passed_over() -> None:
    """Groups go back to the large memory, to which no link leads; tasks alone fit into the other,
    two tensors at a time."""
    result = get_solver("celeritas").solve(one_way(25), SolveOptions())
    assert result.objective_ns == 6
    with pytest.raises(SolverLimitError, match="memory 'small' has 15 B and lacks 5 B"):
        get_solver("celeritas").solve(one_way(15), SolveOptions())
