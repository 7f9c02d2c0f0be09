"""Random plans of several items: batches of any items on any device, and the copies they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from relay_models import random_costs

from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Link, Memory
from heteroplace.model.cost import Cost, CostTable, table_from_rows
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Plan, Run, Step
from heteroplace.model.solution import Solution
from heteroplace.simulate.simulator import simulate

MAX_ITEMS = 4


def with_batch_sizes(cluster: Cluster, sizes: Sequence[int]) -> Cluster:
    """The cluster whose devices run batches of these sizes."""
    devices = tuple(replace(device, batch_sizes=tuple(sizes)) for device in cluster.devices)
    return replace(cluster, devices=devices)


def with_second_memory(cluster: Cluster) -> Cluster:
    """The same with its last device in a memory of its own, which links lead to."""
    size = cluster.memories[0].bytes
    memories = (*cluster.memories, Memory("apart", size))
    last = replace(cluster.devices[-1], memory=len(cluster.memories))
    links = (Link("to", 0, 1, 10**9, 1000, "to"), Link("back", 1, 0, 10**9, 1000, "back"))
    return replace(cluster, memories=memories, devices=(*cluster.devices[:-1], last), links=links)


def batch_costs(graph: TaskGraph, cluster: Cluster) -> CostTable:
    """Any times; a batch of n takes n times as long as one item."""
    one = random_costs(graph, cluster)
    larger = {
        size: tuple(tuple(Cost.given(size * (cost.ns or 0)) for cost in row) for row in one.rows)
        for size in range(2, MAX_ITEMS + 1)
    }
    return table_from_rows(graph, cluster, one.rows, larger)


def random_batches(random: Random, items: int) -> list[tuple[int, ...]]:
    """The items in batches; often of neighbours."""
    members = list(range(items))
    if random.random() < 0.4:
        random.shuffle(members)
    found = []
    while members:
        size = random.randint(1, len(members))
        found.append(tuple(sorted(members[:size])))
        members = members[size:]
    return found


class _Planner:
    def __init__(self, random: Random, graph: TaskGraph, cluster: Cluster, items: int) -> None:
        self.random, self.graph, self.cluster, self.items = random, graph, cluster, items
        assert cluster.host is not None
        self.home = {(t, i): cluster.host for t in graph.inputs for i in range(items)}
        self.present = {(t, i, cluster.host) for t, i in self.home}
        self.steps: list[Step] = []

    def bring(self, tensor: int, memory: int, items: Sequence[int]) -> None:
        missing = [item for item in items if (tensor, item, memory) not in self.present]
        by_home: dict[int, list[int]] = {}
        for item in missing:
            by_home.setdefault(self.home[tensor, item], []).append(item)
        for home, found in by_home.items():
            is_joint = self.random.random() < 0.5
            for part in [tuple(found)] if is_joint else [(item,) for item in found]:
                route = self.cluster.route(home, memory)
                self.steps.append(Copy(tensor, home, memory, route, part))
        self.present.update((tensor, item, memory) for item in missing)

    def run(self) -> tuple[Step, ...]:
        graph, random = self.graph, self.random
        batches = random_batches(random, self.items)
        for task in range(len(graph.tasks)):
            if random.random() < 0.5:
                batches = random_batches(random, self.items)
            for items in batches:
                device = random.randrange(len(self.cluster.devices))
                memory = self.cluster.devices[device].memory
                for tensor in graph.task_inputs[task]:
                    self.bring(tensor, memory, items)
                self.steps.append(Run(task, device, items))
                for tensor in graph.task_outputs[task]:
                    self.home |= {(tensor, item): memory for item in items}
                    self.present.update((tensor, item, memory) for item in items)
        assert self.cluster.host is not None
        for tensor in dict.fromkeys(graph.outputs):
            self.bring(tensor, self.cluster.host, range(self.items))
        return tuple(self.steps)


def random_item_steps(
    random: Random, graph: TaskGraph, cluster: Cluster, items: int
) -> tuple[Step, ...]:
    """Steps that run each task for each item once, in batches that may change from task to task."""
    return _Planner(random, graph, cluster, items).run()


def item_solution(
    graph: TaskGraph, cluster: Cluster, items: int, steps: tuple[Step, ...]
) -> Solution:
    """The plan of these steps, checked."""
    costs = batch_costs(graph, cluster)
    plan = Plan(graph.digest(), cluster.digest(), steps, "by chance", items=items)
    check_plan(graph, cluster, costs, plan)
    makespan = simulate(graph, cluster, costs, plan).makespan_ns
    return Solution(graph, cluster, costs, plan, makespan, 0)
