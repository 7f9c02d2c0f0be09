"""Loads of weights within a budget: the worked timelines of plans, and any budget that does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given

from heteroplace.errors import InfeasibleError, PlanError
from heteroplace.files.plan_file import plan_from_json, plan_to_json
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.memory_use.weight_room import held_weights
from heteroplace.model.plan import Guard, Load, Plan, Run, guard_of
from heteroplace.model.routed.decision import Decision, decision_of
from heteroplace.model.routed.routers import Router
from heteroplace.model.text.plan_text import parse_plan, print_plan
from heteroplace.parts.routing.solve.expected_view import guarded
from heteroplace.parts.routing.solve.preloaded import Preloading, preloaded
from heteroplace.simulate.expect import expect
from heteroplace.simulate.interference import no_interference
from heteroplace.simulate.simulator import simulate
from tests.corpus import corpus
from tests.routed_plans import RoutedCase, random_routed_plan
from tests.strategies import exact_cases

WEIGHT_BYTES = 64
"""Of a branch."""


def chain(load_ns: int = 3, num_layers: int = 4) -> tuple[TaskGraph, Cluster, CostTable, Plan]:
    """Layers of two branches that compute for 4 ns, one in a run, with weights in a file."""
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


@pytest.mark.parametrize(("num_groups", "missed"), [(3, [1]), (2, [1]), (2, []), (1, [])])
def test_the_expected_time_knows_that_loads_wait_for_room(
    num_groups: int, missed: list[int]
) -> None:
    ahead = range(4) if num_groups > 1 else ()
    graph, cluster, costs, plan = chain()
    made = preloaded(graph, cluster, plan, asked(graph, num_groups * WEIGHT_BYTES, ahead))
    loads = {f"r{layer}": (0, 1) if layer in missed else (1, 0) for layer in range(4)}
    decision = decision_of(graph, loads, {f"r{layer}": (0,) for layer in ahead})
    timeline = simulate(graph, cluster, costs, made, decision=decision)
    calm = no_interference(graph, cluster)
    found = expect(graph, cluster, costs, made, calm, 1, decision=decision)
    assert found.makespan_ns == timeline.makespan_ns


def test_a_load_waits_for_what_runs_from_its_place() -> None:
    builder = TaskGraphBuilder("two")
    made = builder.add_input("x", (1,), "int8")
    for name in "ab":
        builder.add_task(Task(name, "op", weight_bytes=100), [made])
        made = builder.add_tensor(name, (1,), "int8")
    graph = builder.finalize([made])
    memories = Memory("ram", 150), Memory("file", 10**6)
    devices = (Device("cpu", "cpu", "llvm", 0, 0, (0,)),)
    cluster = Cluster("box", memories, devices, (Link("up", 1, 0, 10**9, 0, "up"),), host=0)
    costs = build_table(graph, cluster, lambda *_: Cost.given(1000))
    loads = [Load((task,), 1, 0, (0,), None, (0, 100)) for task in range(2)]
    steps = loads[0], Run(0, 0), loads[1], Run(1, 0)
    plan = Plan(graph.digest(), cluster.digest(), steps, "hand")
    check_plan(graph, cluster, costs, plan)
    timeline = simulate(graph, cluster, costs, plan)
    assert [span.start_ns for span in timeline.spans] == [0, 100, 1100, 1200]
    assert timeline.peak_bytes[0] == 103


def test_what_all_fits_stays() -> None:
    graph, cluster, costs, plan = chain()
    made = preloaded(graph, cluster, plan, asked(graph, 8 * WEIGHT_BYTES))
    assert not made.loads
    decision = decision_of(graph, {f"r{layer}": (1, 0) for layer in range(4)})
    assert simulate(graph, cluster, costs, made, decision=decision).makespan_ns == 16


def routed_plan_of(random: Random) -> RoutedCase:
    """A random routed network and plan, of which the loads are taken out, with a file."""
    case = random_routed_plan(random)
    cluster = case.instance.cluster
    count = len(cluster.memories)
    cluster = replace(
        cluster,
        memories=(*cluster.memories, Memory("file", 10**6)),
        links=(*cluster.links, Link("file-0", count, 0, 10**9, random.randint(0, 3), "file")),
    )
    steps = tuple(step for step in case.plan.steps if not isinstance(step, Load))
    plan = replace(case.plan, steps=steps, cluster_digest=cluster.digest())
    return replace(case, instance=replace(case.instance, cluster=cluster), plan=plan)


loadless_plans = corpus(routed_plan_of)


def sizes_of(graph: TaskGraph) -> tuple[int, ...]:
    return tuple(-(-task.weight_bytes // 4) * 4 for task in graph.tasks)


def largest_group(graph: TaskGraph, cluster: Cluster, plan: Plan) -> int:
    """Bytes of the largest branch in a memory."""
    sizes, groups = sizes_of(graph), {}
    runs = {(s.task, cluster.devices[s.device].memory) for s in plan.steps if isinstance(s, Run)}
    for task, memory in runs:
        if graph.branches[task]:
            key = graph.branches[task][-1], memory
            groups[key] = groups.get(key, 0) + sizes[task]
    return max(groups.values(), default=0)


def held_at_most(case: RoutedCase, plan: Plan, decision: Decision) -> int:
    """The most bytes of weights of branches that any memory holds, by the times of one run alone:
    from the start of each load that is made to the end of the last run that reads it."""
    graph, cluster, costs = case.instance.graph, case.instance.cluster, case.instance.costs
    spans = {
        span.step: (span.start_ns, span.finish_ns)
        for span in simulate(graph, cluster, costs, plan, decision=decision).spans
    }
    sizes, most = sizes_of(graph), 0
    for held in held_weights(graph, cluster, plan):
        events = []
        for index, load in enumerate(plan.steps):
            if not isinstance(load, Load) or load.dst != held.memory or index not in spans:
                continue
            (task,) = load.tasks
            ends = [
                spans[at][1]
                for at, step in enumerate(plan.steps)
                if isinstance(step, Run) and step.task == task and at in spans
            ]
            begin, end = spans[index][0], max([spans[index][1], *ends])
            if end > begin:
                events += [(begin, 1, sizes[task]), (end, 0, -sizes[task])]
        now = held.stays_bytes
        most = max(most, now)
        for _, _, change in sorted(events):
            now += change
            most = max(most, now)
    return most


@pytest.mark.costly(4)
@given(loadless_plans())
@exact_cases(60)
def test_any_budget_that_holds_the_largest_branch_does(case: RoutedCase) -> None:
    graph, cluster, costs = case.instance.graph, case.instance.cluster, case.instance.costs
    random = Random(len(case.plan.steps))
    sizes = sizes_of(graph)
    total = sum(size for task, size in enumerate(sizes) if graph.branches[task])
    least = largest_group(graph, cluster, case.plan)
    branches = sorted({around[-1] for around in graph.branches if around})
    ahead = tuple(branch for branch in branches if random.random() < 0.5)
    kept = tuple(branch for branch in branches if branch not in ahead and random.random() < 0.5)
    for budget in (least, random.randint(least, max(least, total))):
        made = preloaded(graph, cluster, case.plan, Preloading(budget, kept, ahead, sizes))
        check_plan(graph, cluster, costs, made)
        assert parse_plan(print_plan(graph, cluster, made), graph, cluster) == made
        value = json.loads(json.dumps(plan_to_json(made, graph, cluster)))
        assert plan_from_json(value, graph, cluster) == made
        assert all(held.total_bytes <= budget for held in held_weights(graph, cluster, made))
        for decision in case.decisions:
            assert held_at_most(case, made, decision) <= budget


def test_a_budget_below_the_largest_branch_is_told() -> None:
    graph, cluster, _, plan = chain()
    with pytest.raises(InfeasibleError, match=r"a budget of 63 B .* branch 0 of router 'r0', 64 B"):
        preloaded(graph, cluster, plan, asked(graph, WEIGHT_BYTES - 1))


def test_weights_that_nothing_can_keep_are_told() -> None:
    graph, cluster, _, plan = chain()
    alone = replace(cluster, links=())
    plan = replace(plan, cluster_digest=alone.digest())
    with pytest.raises(InfeasibleError, match="no other memory can keep them"):
        preloaded(graph, alone, plan, asked(graph, 2 * WEIGHT_BYTES))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda load: replace(load, place=None), "it has no place in the room for weights"),
        (lambda load: replace(load, place=(0, 8)), "its place is 8 bytes from byte 0 on; it needs"),
        (lambda load: replace(load, place=(-8, 64)), "its place is 64 bytes from byte -8 on"),
        (lambda load: replace(load, place=(128, 64)), r"\(64 bytes too few\)"),
    ],
)
def test_a_wrong_place_is_told(change: object, fault: str) -> None:
    graph, cluster, costs, plan = chain()
    made = preloaded(graph, cluster, plan, asked(graph, 2 * WEIGHT_BYTES))
    first = next(at for at, step in enumerate(made.steps) if isinstance(step, Load))
    steps = (*made.steps[:first], change(made.steps[first]), *made.steps[first + 1 :])
    with pytest.raises(PlanError, match=fault):
        check_plan(graph, cluster, costs, replace(made, steps=steps))


def test_bytes_that_are_still_read_are_not_taken() -> None:
    graph, cluster, costs, plan = chain()
    made = preloaded(graph, cluster, plan, asked(graph, 3 * WEIGHT_BYTES, range(4)))
    steps = tuple(
        replace(step, place=(0, WEIGHT_BYTES)) if isinstance(step, Load) else step
        for step in made.steps
    )
    with pytest.raises(PlanError, match=r"it takes bytes of the weights of .*, which a later step"):
        check_plan(graph, cluster, costs, replace(made, steps=steps))


def test_what_is_asked_for_goes_before_what_is_expected() -> None:
    """On the link: loads of a router's branches on demand, then those ahead of the next router."""
    graph, cluster, _, plan = chain()
    made = preloaded(graph, cluster, plan, asked(graph, 3 * WEIGHT_BYTES, range(4)))
    guards = [guard_of(step) for step in made.steps if isinstance(step, Load)]
    assert guards[:6] == [
        Guard(0, 0, "predicted"),
        Guard(0, 0, "missed"),
        Guard(0, 1),
        Guard(1, 0, "predicted"),
        Guard(1, 0, "missed"),
        Guard(1, 1),
    ]
