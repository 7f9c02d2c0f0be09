"""Expected run times: equal to the simulator's without interference, and worked cases with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from heteroplace.errors import CostMismatchError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Copy, Plan, Run, Step
from heteroplace.simulate.expect import expect, expect_alone
from heteroplace.simulate.interference import Interference, no_interference
from heteroplace.simulate.simulator import simulate
from tests.explicit_plans import explicit_plans
from tests.strategies import Instance, exact_cases, instances_with_plan

CORES = Cluster(
    "two-cores",
    (Memory("ram", 10**9),),
    tuple(Device(f"cpu.{core}", "cpu", "llvm", 0, 0, (core,)) for core in range(2)),
    host=0,
)
LINKED = Cluster(
    "linked",
    (Memory("ram", 10**9), Memory("card", 10**9)),
    (Device("cpu", "cpu", "llvm", 0, 0, (0,)), Device("gpu", "cuda", "cuda", 0, 1)),
    (Link("up", 0, 1, 10**9, 0, "up"), Link("down", 1, 0, 10**9, 0, "down")),
    host=0,
)


def chain_or_set(
    times_ns: Sequence[int], cluster: Cluster = CORES, is_chain: bool = False, num_bytes: int = 4
) -> tuple[TaskGraph, CostTable]:
    """Tasks of these times on every device: each reads the one before, or all read the input."""
    builder = TaskGraphBuilder("tasks")
    source = last = builder.add_input("x", num_bytes=num_bytes)
    outputs = []
    for index in range(len(times_ns)):
        builder.add_task(Task(f"t{index}", "op"), [last if is_chain else source])
        last = builder.add_tensor(f"t{index}", num_bytes=num_bytes)
        outputs.append(last)
    graph = builder.finalize([last] if is_chain else outputs)
    return graph, build_table(graph, cluster, lambda task, _: Cost.given(times_ns[task]))


def plan_of(graph: TaskGraph, cluster: Cluster, *steps: Step) -> Plan:
    return Plan(graph.digest(), cluster.digest(), steps, "by hand")


def disturbed(graph: TaskGraph, cluster: Cluster, slowdown: float) -> Interference:
    quiet = no_interference(graph, cluster)
    return replace(quiet, slowdown=np.full(quiet.slowdown.shape, slowdown))


@given(instances_with_plan(max_items=3, has_modes=True))
@exact_cases(300)
def test_without_interference_it_is_the_simulated_time(case: tuple[Instance, Plan]) -> None:
    instance, plan = case
    graph, cluster, costs = instance.graph, instance.cluster, instance.costs
    simulated = simulate(graph, cluster, costs, plan)
    found = expect(graph, cluster, costs, plan, no_interference(graph, cluster), num_draws=3)
    assert found.timeline.spans == simulated.spans
    assert found.low_ns == found.makespan_ns == found.high_ns == simulated.makespan_ns


@given(explicit_plans())
@exact_cases(50)
def test_so_it_is_for_explicit_plans(case: tuple[Instance, Plan]) -> None:
    instance, plan = case
    graph, cluster, costs = instance.graph, instance.cluster, instance.costs
    found = expect(graph, cluster, costs, plan, no_interference(graph, cluster), num_draws=1)
    assert found.timeline.spans == simulate(graph, cluster, costs, plan).spans


@pytest.mark.costly
@given(instances_with_plan(max_items=2, has_modes=True))
@exact_cases(50)
def test_more_interference_never_shortens_a_plan(case: tuple[Instance, Plan]) -> None:
    instance, plan = case
    graph, cluster, costs = instance.graph, instance.cluster, instance.costs
    quiet = no_interference(graph, cluster)
    waits = replace(quiet, core_to_core_ns=50)
    times = [
        expect(graph, cluster, costs, plan, level, num_draws=1).makespan_ns
        for level in (quiet, waits)
    ]
    assert times[0] <= times[1]


def test_costs_of_another_day_are_brought_to_the_pace_of_now() -> None:
    graph, costs = chain_or_set([1000, 3000])
    quiet = no_interference(graph, CORES)
    # Device 0 takes 1.5 times as long as its costs say, on the task that was measured again.
    now = replace(quiet, alone_ns=np.array([[0.0, 0.0], [4500.0, 0.0]]))
    assert now.pace(costs).tolist() == [1.5, 1.0]
    for device, makespan_ns in ((0, 6000), (1, 4000)):
        plan = plan_of(graph, CORES, Run(0, device), Run(1, device))
        assert expect(graph, CORES, costs, plan, now).makespan_ns == makespan_ns


def test_two_tasks_side_by_side_take_as_long_as_their_slowdown_says() -> None:
    graph, costs = chain_or_set([1000, 1000])
    plan = plan_of(graph, CORES, Run(0, 0), Run(1, 1))
    found = expect(graph, CORES, costs, plan, disturbed(graph, CORES, 1.5))
    assert found.makespan_ns == pytest.approx(1500, rel=0.002)


def test_a_task_is_slowed_only_while_the_other_runs() -> None:
    # The short one takes 20 for 10. Meanwhile the long one does 10 of its 30; 20 are left.
    graph, costs = chain_or_set([10_000, 30_000])
    plan = plan_of(graph, CORES, Run(0, 0), Run(1, 1))
    found = expect(graph, CORES, costs, plan, disturbed(graph, CORES, 2.0))
    finishes = [span.finish_ns for span in found.timeline.spans]
    assert finishes == [pytest.approx(20_000, rel=0.002), pytest.approx(40_000, rel=0.002)]


def test_tasks_of_one_device_do_not_slow_each_other() -> None:
    graph, costs = chain_or_set([1000, 1000])
    plan = plan_of(graph, CORES, Run(0, 0), Run(1, 0))
    assert expect(graph, CORES, costs, plan, disturbed(graph, CORES, 2.0)).makespan_ns == 2000


def test_a_wait_is_paid_between_devices_only() -> None:
    graph, costs = chain_or_set([1000, 1000, 1000], is_chain=True)
    level = replace(no_interference(graph, CORES), core_to_core_ns=40)
    there_and_back = plan_of(graph, CORES, Run(0, 0), Run(1, 1), Run(2, 0))
    assert expect(graph, CORES, costs, there_and_back, level).makespan_ns == 3000 + 2 * 80
    at_home = plan_of(graph, CORES, Run(0, 0), Run(1, 0), Run(2, 0))
    assert expect(graph, CORES, costs, at_home, level).makespan_ns == 3000


def test_what_another_device_made_is_fetched_once() -> None:
    graph, costs = chain_or_set([1000, 1000, 1000], is_chain=True, num_bytes=400)
    level = replace(no_interference(graph, CORES), fetch_ns_per_byte=0.5)
    once = plan_of(graph, CORES, Run(0, 0), Run(1, 1), Run(2, 1))
    assert expect(graph, CORES, costs, once, level).makespan_ns == 3000 + 200
    twice = plan_of(graph, CORES, Run(0, 0), Run(1, 1), Run(2, 0))
    assert expect(graph, CORES, costs, twice, level).makespan_ns == 3000 + 400


def test_copies_slow_what_runs_beside_them() -> None:
    # The copy takes 1000 ns; meanwhile the CPU's second task does half of its 1000.
    graph, costs = chain_or_set([500, 1000], LINKED, num_bytes=1000)
    plan = plan_of(graph, LINKED, Run(0, 0), Copy(graph.task_outputs[0][0], 0, 1, (0,)), Run(1, 0))
    quiet = no_interference(graph, LINKED)
    level = replace(quiet, copy_slowdown=np.full(quiet.copy_slowdown.shape, 2.0))
    found = expect(graph, LINKED, costs, plan, level)
    # Beside two links of which one is busy, half of the loss.
    assert found.timeline.spans[-1].finish_ns == pytest.approx(500 + 1250, rel=0.002)


def test_scatter_makes_the_slower_of_two_decide() -> None:
    graph, costs = chain_or_set([1000, 1000])
    plan = plan_of(graph, CORES, Run(0, 0), Run(1, 1))
    # In half of the runs everything takes 1.5 times as long.
    runs = np.ones((100, 2))
    runs[::2] = 1.5
    level = replace(no_interference(graph, CORES), scatter=(runs, runs))
    found = expect(graph, CORES, costs, plan, level, num_draws=100)
    assert (found.low_ns, found.makespan_ns, found.high_ns) == (1000, 1500, 1500)
    alone = plan_of(graph, CORES, Run(0, 0), Run(1, 0))
    assert expect(graph, CORES, costs, alone, level, num_draws=100).makespan_ns == 2500


def test_the_draws_depend_on_the_seed_alone() -> None:
    graph, costs = chain_or_set([1000, 1000])
    plan = plan_of(graph, CORES, Run(0, 0), Run(1, 1))
    runs = np.random.default_rng(5).uniform(0.9, 1.4, (50, 2))
    level = replace(no_interference(graph, CORES), scatter=(runs, runs))
    first, again, other = (
        expect(graph, CORES, costs, plan, level, num_draws=9, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_interference_of_another_graph_is_refused() -> None:
    graph, costs = chain_or_set([1000])
    other, _ = chain_or_set([1000, 1000])
    with pytest.raises(CostMismatchError, match="measure it again"):
        expect(graph, CORES, costs, plan_of(graph, CORES), no_interference(other, CORES))


FAR = Cluster(
    "far",
    (Memory("ram.a", 10**9), Memory("ram.b", 10**9)),
    (
        Device("a", "cpu", "llvm", 0, 0, (0,), host="a"),
        Device("b", "cpu", "llvm", 1, 1, (0,), host="b"),
    ),
    (Link("there", 0, 1, 10**9, 5000, "net"), Link("back", 1, 0, 10**9, 5000, "net")),
    host=0,
)


def costs_of(graph: TaskGraph, cluster: Cluster) -> CostTable:
    return build_table(graph, cluster, lambda *_: Cost.given(10))


def test_messages_follow_each_other_by_their_bytes() -> None:
    builder = TaskGraphBuilder("two messages")
    sources = [builder.add_input(name, num_bytes=1000) for name in ("x", "y")]
    for name, source in zip(("a", "b"), sources, strict=True):
        builder.add_task(Task(name, "op"), [source])
    outputs = [builder.add_tensor(name, num_bytes=0) for name in ("a", "b")]
    graph = builder.finalize(outputs)
    costs = costs_of(graph, FAR)
    there = [Copy(tensor, 0, 1, (0,)) for tensor in graph.inputs]
    back = [Copy(graph.task_outputs[task][0], 1, 0, (1,)) for task in (0, 1)]
    plan = plan_of(graph, FAR, *there, Run(0, 1), Run(1, 1), *back)
    assert simulate(graph, FAR, costs, plan).makespan_ns == 2 * 6000 + 2 * 5000
    found = expect_alone(graph, FAR, costs, plan)
    # The second message begins when the bytes of the first one are sent, and so do the answers,
    # which have none: 1000 + 1000 + 5000, one task, 5000.
    assert found.makespan_ns == found.low_ns == 7000 + 10 + 5000
    near = replace(FAR, devices=tuple(replace(device, host="") for device in FAR.devices))
    on_near = replace(plan, cluster_digest=near.digest())
    alone = expect_alone(graph, near, costs_of(graph, near), on_near)
    assert alone.makespan_ns == simulate(graph, FAR, costs, plan).makespan_ns
