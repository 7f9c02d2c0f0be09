"""Loads of weights within a budget: the worked timelines of built plans, and any budget that does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given

from heteroplace.errors import InfeasibleError, PlanError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.decision import Decision, decision_of
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Guard, Load, Plan, Run, guard_of
from heteroplace.model.routers import Router
from heteroplace.model.text.plan import parse_plan, print_plan
from heteroplace.model.weight_room import held_weights
from heteroplace.simulate.simulator import simulate
from heteroplace.solve.preloaded import Preloading, preloaded
from heteroplace.solve.routed import guarded
from tests.corpus import corpus
from tests.routed_plans import RoutedCase, random_routed_plan
from tests.strategies import exact_cases, num_cases

WEIGHT_BYTES = 64
"""Of a branch."""


def chain(load_ns: int = 3, num_layers: int = 4) -> tuple[TaskGraph, Cluster, CostTable, Plan]:
    """Layers of two branches that compute for 4 ns, one of them in a run, with weights in a file."""
    builder = TaskGraphBuilder("chain")
    value = builder.add_input("x", (8,), "int8")
    for layer in range(num_layers):
        name = f"r{layer}"
        builder.add_task(Task(f"{name}.route", "route"), [value])
        loads = builder.add_tensor(f"{name}.route", (2,), "int32", name=f"{name}.loads")
        made = []
        for branch in range(2):
            task = Task(
                f"{name}.{branch}", "dense", weight_bytes=WEIGHT_BYTES, branch=(name, branch)
            )
            builder.add_task(task, [value, loads])
            made.append(builder.add_tensor(task.name, (8,), "int8"))
        builder.add_router(Router(name, -1, -1, 1, 1, ((1,), (1,))), loads)
        builder.add_task(Task(f"{name}.join", "select"), [*made, loads])
        value = builder.add_tensor(f"{name}.join", (8,), "int8")
    graph = builder.finalize([value])
    cluster = Cluster(
        "one core",
        (Memory("ram", 10**6), Memory("file", 10**6)),
        (Device("cpu.0", "cpu", "llvm", 0, 0, (0,)),),
        (Link("file", 1, 0, 10**9, 0, "file", ((WEIGHT_BYTES, load_ns),)),),
        host=0,
    )
    costs = build_table(
        graph,
        cluster,
        lambda task, _: Cost.given(4 if graph.tasks[task].branch else 0),
    )
    steps = tuple(Run(task, 0) for task in range(len(graph.tasks)))
    plan = guarded(graph, cluster, Plan(graph.digest(), cluster.digest(), steps, "by hand"))
    return graph, cluster, costs, plan


def asked(graph: TaskGraph, budget: int, ahead: Sequence[int] = ()) -> Preloading:
    """Branch 0 of these routers is loaded ahead."""
    sizes = tuple(task.weight_bytes for task in graph.tasks)
    return Preloading(budget, (), tuple((router, 0) for router in ahead), sizes)


def makespan(load_ns: int, num_groups: int, ahead: Sequence[int], missed: Sequence[int]) -> int:
    """How long a run takes with room for so many groups, if some routers take the other branch."""
    graph, cluster, costs, plan = chain(load_ns)
    made = preloaded(graph, cluster, plan, asked(graph, num_groups * WEIGHT_BYTES, ahead))
    check_plan(graph, cluster, costs, made)
    assert parse_plan(print_plan(graph, cluster, made), graph, cluster) == made
    loads = {f"r{layer}": (0, 1) if layer in missed else (1, 0) for layer in range(4)}
    decision = decision_of(graph, loads, {f"r{layer}": (0,) for layer in ahead})
    return simulate(graph, cluster, costs, made, decision=decision).makespan_ns


@pytest.mark.parametrize("num_groups", [1, 2, 4])
def test_the_worked_timelines_of_loads_on_demand(num_groups: int) -> None:
    assert makespan(3, num_groups, (), ()) == 28
    assert makespan(6, num_groups, (), ()) == 40


@pytest.mark.parametrize("num_groups", [2, 3, 4])
def test_the_worked_timelines_of_loads_ahead(num_groups: int) -> None:
    """Two groups are held at once, of eight that there are."""
    assert makespan(3, num_groups, range(4), ()) == 19
    assert makespan(6, num_groups, range(4), ()) == 28


@pytest.mark.parametrize("missed", [1, 2, 3])
def test_a_wrong_load_costs_one_on_demand_where_there_is_room_beside_it(missed: int) -> None:
    """With room for two groups the next one waits for the branch that was not expected, too."""
    assert makespan(3, 3, range(4), [missed]) == 22
    assert makespan(3, 2, range(4), [missed]) == (22 if missed == 3 else 25)


def test_what_all_fits_stays() -> None:
    graph, cluster, costs, plan = chain()
    made = preloaded(graph, cluster, plan, asked(graph, 8 * WEIGHT_BYTES))
    assert not made.loads
    decision = decision_of(graph, {f"r{layer}": (1, 0) for layer in range(4)})
    assert simulate(graph, cluster, costs, made, decision=decision).makespan_ns == 16
