"""Kernels chosen together with the place: exact solvers against all choices, tried one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.model.check import check_plan
from heteroplace.model.cost import Cost, allowed_devices, build_table
from heteroplace.model.implementations import base_of, implementation_gains, twin_name
from heteroplace.solve import Problem, SolveOptions, get_solver
from tests.reference.brute_force import optimal_makespan
from tests.strategies import Instance, exact_cases, instances

OPTIONS = SolveOptions(iterations=1000, threads=1, time_limit_s=20, min_gain_ratio=0)


@pytest.mark.costly
@given(instances(max_tasks=4), st.randoms(use_true_random=False))
@exact_cases(50)
def test_an_exact_choice_is_the_best_of_all_choices(instance: Instance, random) -> None:
    """Kernels of equal layouts: whatever the place, a task's quicker ones are the ones to take."""
    tasks = tuple(replace(task, together=None) for task in instance.graph.tasks)
    graph = replace(instance.graph, tasks=tasks)
    base = instance.cluster
    count = len(base.devices)
    twins = tuple(replace(each, name=twin_name(each.name, "tvm")) for each in base.devices)
    cluster = replace(base, devices=(*base.devices, *twins))
    allowed = allowed_devices(graph, cluster)
    times = [
        [
            row[device % count].ns if device < count else random.choice([None, *range(12)])
            for device in range(2 * count)
        ]
        for row in instance.costs.rows
    ]

    def least(task: int, device: int) -> Cost:
        both = [times[task][each] for each in (device, device + count) if each in allowed[task]]
        return cost_of(min((ns for ns in both if ns is not None), default=None))

    best = build_table(graph, base, least)
    costs = build_table(graph, cluster, lambda task, device: cost_of(times[task][device]))
    optimum = optimal_makespan(graph, base, best)
    if optimum is None:
        return
    problem = Problem(graph, cluster, costs)
    plan = get_solver("cpsat").solve(problem, OPTIONS)
    check_plan(graph, cluster, costs, plan.plan)
    assert plan.objective_ns == optimum
    # Never behind kernels that are all of one maker.
    own = optimal_makespan(graph, base, build_table(graph, base, lambda t, d: cost_of(times[t][d])))
    assert own is None or plan.objective_ns <= own
    gains = implementation_gains(cluster, costs, plan.plan)
    assert set(gains) <= {device.name for device in twins}
    assert [base_of(cluster, index) for index in range(2 * count)] == [
        *[None] * count,
        *range(count),
    ]


def cost_of(ns: int | None) -> Cost:
    return Cost.unsupported("no kernel") if ns is None else Cost.given(ns)
