"""Branches that are done side by side: which steps of a plan they are, and what they take."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graphs.groups import grouped_ns, groups_of, makespan_ns
from heteroplace.model.plan import Guard, Load, Plan, Run, Step
from heteroplace.model.routed.decision import decision_of
from heteroplace.simulate.simulator import simulate
from tests.routed_plans import layer_graph
from tests.strategies import num_cases

LAYER = layer_graph(capacities=((1, 2, 6),) * 4)
TASKS = {task.name: index for index, task in enumerate(LAYER.tasks)}


def cluster(*cores: tuple[int, ...]) -> Cluster:
    """A device for each of some sets of cores, in one memory."""
    devices = (Device(f"cpu.{n}", "cpu", "llvm", 0, 0, each) for n, each in enumerate(cores))
    return Cluster("cores", (Memory("ram", 10**9),), tuple(devices), (), 0)


def runs(device_of_branch: dict[int, int]) -> list[Step]:
    """The runs of all tasks of some branches."""
    return [
        Run(index, device_of_branch[task.branch[1]], guard=Guard(0, task.branch[1]))
        for index, task in enumerate(LAYER.tasks)
        if task.branch is not None and task.branch[1] in device_of_branch
    ]


def test_branches_of_one_router_on_several_cores_are_a_group() -> None:
    two = cluster((0,), (1,))
    steps = runs({0: 0, 1: 1, 2: 0, 3: 0})
    assert groups_of(LAYER, two, steps) == (tuple(range(len(steps))),)
    assert groups_of(LAYER, cluster((0, 1)), runs({0: 0, 1: 0}))
    one_core, one_branch = runs({0: 0, 1: 0}), runs({2: 1})
    assert groups_of(LAYER, two, one_core) == groups_of(LAYER, two, one_branch) == ()
    loads: list[Step] = [
        Load((step.task,), 0, 0, (), step.guard) for step in steps[:2] if isinstance(step, Run)
    ]
    assert len(groups_of(LAYER, two, [*loads, *steps])[0]) == len(steps) - 2
    speculated = [
        replace(step, guard=replace(step.guard, when="missed")) for step in runs({0: 0, 1: 1})
    ]
    assert groups_of(LAYER, two, speculated) == ()


def test_a_group_takes_its_makespan_wherever_the_plan_has_its_branches() -> None:
    two = cluster((0,), (1,))
    loads = [4, 3, 3, 2]

    def times(steps: list[Step]) -> list[int]:
        return [100 * loads[s.guard.branch] for s in steps if isinstance(s, Run) and s.guard]

    for devices in ({0: 0, 1: 0, 2: 0, 3: 1}, {0: 0, 1: 1, 2: 1, 3: 0}):
        steps = runs(devices)
        found = grouped_ns(LAYER, two, steps, times(steps))
        busy = [
            sum(time for time, step in zip(found, steps, strict=True) if step.device == device)
            for device in range(2)
        ]
        per_branch = len(steps) // 4
        assert max(busy) == pytest.approx(600 * per_branch, abs=len(steps))
    # One device of both cores: each of its branches is done by one of them.
    steps = runs({0: 0, 1: 0, 2: 0, 3: 0})
    found = grouped_ns(LAYER, cluster((0, 1)), steps, [time // 2 for time in times(steps)])
    assert sum(found) == pytest.approx(600 * len(steps) // 4, abs=len(steps))
    idle = [0] * len(steps)
    assert grouped_ns(LAYER, cluster((0, 1)), steps, idle) == idle


@given(st.lists(st.integers(0, 1000), max_size=12), st.integers(1, 5))
@num_cases(100)
def test_a_list_by_length_is_near_the_best(times: list[int], num_cores: int) -> None:
    """Within 4/3 - 1/(3 m) of the optimum (Graham), so of what is no less than these bounds."""
    found = makespan_ns(times, num_cores)
    ordered = sorted(times, reverse=True)
    two = sum(ordered[num_cores - 1 : num_cores + 1]) if len(times) > num_cores else 0
    bound = max(-(-sum(times) // num_cores), max(times, default=0), two)
    assert bound <= found <= max(times, default=0) + sum(times) // num_cores
    assert num_cores > 1 or found == sum(times)


def test_a_decision_is_simulated_so() -> None:
    """What the plan puts on one core alone is shared in a run that has nothing for the other."""
    two = cluster((0,), (1,))
    table = build_table(LAYER, two, lambda *_: Cost.given(3), batches=(1, 2, 6))
    free: list[Step] = [
        Run(index, 0) for index, task in enumerate(LAYER.tasks) if task.branch is None
    ]
    steps = (*free[:-1], *runs({0: 0, 1: 0, 2: 1, 3: 1}), free[-1])
    plan = Plan(LAYER.digest(), two.digest(), steps, "test")
    found = [
        simulate(LAYER, two, table, plan, decision=decision_of(LAYER, {"r": loads})).makespan_ns
        for loads in ((6, 6, 0, 0), (6, 0, 6, 0), (6, 0, 0, 0), (0, 0, 0, 0))
    ]
    # Two tasks before the branches and one behind them, and two in each.
    assert found == [9 + 6, 9 + 6, 9 + 6, 9]
