"""Warnings about plans: values that nobody reads, and copies that go a long way round."""

from __future__ import annotations

from dataclasses import replace

from heteroplace.model.check import check_plan
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.plan import Copy, Plan, Run, Step
from heteroplace.model.warnings import plan_warnings
from tests.instances import gpus, instance
from tests.unit.model.test_check_explicit import good_steps, on_two_devices, step_graph


def test_a_training_step_wastes_nothing() -> None:
    case = on_two_devices(step_graph())
    plan = Plan(case.graph.digest(), case.cluster.digest(), tuple(good_steps()), "test", items=2)
    assert plan_warnings(case.graph, case.cluster, plan) == []


def test_values_that_nobody_reads_are_told() -> None:
    builder = TaskGraphBuilder("dead")
    builder.add_task(Task("a", "split"), [])
    kept, _ = builder.add_tensor("a", (4,), "int8"), builder.add_tensor("a", (4,), "int8")
    case = on_two_devices(builder.finalize([kept]))
    plan = Plan(case.graph.digest(), case.cluster.digest(), (Run(0, 1),), "test")
    check_plan(case.graph, case.cluster, case.costs, plan)
    assert plan_warnings(case.graph, case.cluster, plan) == [
        "step 0: run a @ gpu1: nothing reads tensor 'a.1' after it"
    ]


def test_a_copy_over_a_memory_where_nobody_else_reads_is_told() -> None:
    cluster = gpus({(0, 1): 1, (1, 2): 1, (0, 2): 1}, 3)
    case = instance(
        [("a", "b"), ("a", "c")], {"a": (1,) * 3, "b": (1,) * 3, "c": (1,) * 3}, cluster
    )
    link = {each.name: index for index, each in enumerate(cluster.links)}
    first, second = Copy(0, 0, 1, (link["0-1"],)), Copy(0, 1, 2, (link["1-2"],))
    steps: tuple[Step, ...] = (Run(0, 0), first, second, Run(1, 2), Run(2, 2))
    plan = Plan(case.graph.digest(), cluster.digest(), steps, "test")
    check_plan(case.graph, cluster, case.costs, plan)
    assert plan_warnings(case.graph, cluster, plan) == [
        "step 2: copy a.0 m1 => m2 via 1-2: nothing else reads the tensor in memory 'm1'; a route "
        "leads from 'm0' past it"
    ]
    read_there = replace(plan, steps=(*steps[:4], Run(2, 1)))
    check_plan(case.graph, cluster, case.costs, read_there)
    assert plan_warnings(case.graph, cluster, read_there) == []
    direct = replace(plan, steps=(steps[0], Copy(0, 0, 2, (link["0-2"],)), *steps[3:]))
    assert plan_warnings(case.graph, cluster, direct) == []
    relay = gpus({(0, 1): 1, (1, 2): 1}, 3)
    assert (
        plan_warnings(
            case.graph,
            relay,
            replace(
                plan,
                steps=(Run(0, 0), Copy(0, 0, 1, (0,)), Copy(0, 1, 2, (1,)), Run(1, 2), Run(2, 2)),
            ),
        )
        == []
    )
