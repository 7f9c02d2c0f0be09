"""Layouts chosen with the place: a twin with other layouts has a memory of its own on its cores.

A value there is one in its layouts, and a copy between the memories changes them: it takes the
cores, as devices without copy engines do, and costs what the link says of so many bytes.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, CostTable, build_table, without_barred
from heteroplace.model.graph import TaskGraph, TaskGraphBuilder
from heteroplace.model.implementations import base_of, twin_name
from heteroplace.model.plan import Copy
from heteroplace.model.tasks import Task
from heteroplace.simulate.simulator import simulate
from heteroplace.solve import Problem, SolveOptions, get_solver
from tests.reference.brute_force import optimal_makespan
from tests.reference.kernels_before_places import with_fastest_first, with_kernels_first

OPTIONS = SolveOptions(iterations=1000, threads=1, time_limit_s=20, min_gain_ratio=0)
NUM_INSTANCES = 50
NUM_CHAINS = 20


def layout_instance(random: Random, is_chain: bool) -> tuple[TaskGraph, Cluster, CostTable]:
    """Three or four tasks on two cores, one by one and together, each with twins of other layouts.

    Bytes are as many as ns, so that a change of layout may cost as much as a task.
    """
    builder = TaskGraphBuilder("layouts")
    tensors = [builder.add_input("x", (random.randint(1, 4),), "int8")]
    for index in range(random.randint(3, 4)):
        num_reads = 1 if is_chain else random.randint(1, min(2, len(tensors)))
        reads = tensors[-1:] if is_chain else random.sample(tensors, num_reads)
        builder.add_task(Task(f"t{index}", "op"), reads)
        tensors.append(builder.add_tensor(f"t{index}", (random.randint(1, 6),), "int8"))
    graph = builder.finalize(tensors[-1:])
    cores = {"cpu.0": (0,), "cpu.1": (1,), "cpu.all": (0, 1)}
    own = [Device(n, "cpu", "", 0, 0, c, copy_engines=0) for n, c in cores.items()]
    twins = [replace(each, name=twin_name(each.name, "tvm"), memory=1) for each in own]
    speeds = [random.choice([1, 2, 4]) * 10**9 for _ in range(2)]
    links = tuple(
        Link(f"change{src}", src, 1 - src, speed, random.randint(0, 2), "change")
        for src, speed in enumerate(speeds)
    )
    memories = Memory("ram", 2**30), Memory("ram of other layouts", 2**30)
    cluster = Cluster("box", memories, (*own, *twins), links, host=0)
    names = tuple(device.name for device in cluster.devices)
    graph = replace(graph, tasks=tuple(replace(task, devices=names) for task in graph.tasks))

    def cost(task: int, device: int) -> Cost:
        return Cost.given(random.randint(2, 24) // len(cluster.devices[device].cores))

    return graph, cluster, build_table(graph, cluster, cost)


def restricted(graph: TaskGraph, cluster: Cluster, costs: CostTable, names: set[str]) -> int | None:
    """The optimum with the devices of these names alone."""
    tasks = tuple(
        replace(task, devices=tuple(sorted(names & set(task.devices or ()))))
        for task in graph.tasks
    )
    found = replace(graph, tasks=tasks)
    return optimal_makespan(found, cluster, without_barred(costs, found, cluster))


def check_instance(seed: int, is_chain: bool, solver: str) -> tuple[bool, bool]:
    """Check one instance; say whether to choose together won over kernels first, with and without
    the number of cores, and over each layout throughout."""
    graph, cluster, costs = layout_instance(Random(seed), is_chain)
    optimum = optimal_makespan(graph, cluster, costs)
    found = get_solver(solver).solve(Problem(graph, cluster, costs), OPTIONS)
    check_plan(graph, cluster, costs, found.plan)
    assert simulate(graph, cluster, costs, found.plan).makespan_ns == found.objective_ns == optimum
    placement = found.plan.placement(len(graph.tasks))
    changes = {step.tensor: step.dst for step in found.plan.steps if isinstance(step, Copy)}
    for task, device in enumerate(placement):
        for tensor in graph.task_inputs[task]:
            producer = graph.tensors[tensor].producer
            before = 0 if producer is None else cluster.devices[placement[producer]].memory
            if before != cluster.devices[device].memory:
                assert changes[tensor] == cluster.devices[device].memory
    sequential = []
    for first in (with_kernels_first, with_fastest_first):
        part = first(graph, cluster, costs)
        found_after = optimal_makespan(part, cluster, without_barred(costs, part, cluster))
        assert found_after is not None and optimum is not None and optimum <= found_after
        sequential.append(found_after)
    names = [device.name for device in cluster.devices]
    bases = {name for index, name in enumerate(names) if base_of(cluster, index) is None}
    throughout = [restricted(graph, cluster, costs, part) for part in (bases, set(names) - bases)]
    assert all(other is not None and optimum <= other for other in throughout)
    over_first = optimum < min(sequential)
    return over_first, all(other is not None and optimum < other for other in throughout)


@pytest.mark.costly(7)
def test_layouts_chosen_with_the_place_are_the_best_of_all_choices() -> None:
    won = [check_instance(seed, False, "cpsat") for seed in range(NUM_INSTANCES)]
    assert any(over_first for over_first, _ in won)
    assert any(over_throughout for _, over_throughout in won)


@pytest.mark.costly
def test_modules_of_a_chain_are_joined_over_changes_of_layout() -> None:
    won = [check_instance(1000 + seed, True, "split") for seed in range(NUM_CHAINS)]
    assert any(over_first for over_first, _ in won)
    assert any(over_throughout for _, over_throughout in won)
