"""Task graphs and networks of SAGA (anrg-saga on PyPI) as problems of this package.

Coleman, Krishnamachari, "Scheduling Algorithms Gathered", 2023. In its model a transfer takes the
edge's size over the link's speed and waits for no other one, so the cluster has congestion "none"
and a task makes a tensor for each edge. Its mean transfer is over the undirected links and the
loops, where ours is over the ordered pairs of distinct devices: (n + 1) n / 2 of them, and no time
in n, are as many as the pairs of n + 1 devices of which one has no links. So there is such a device
more, on which nothing runs. One unit of its time is 10**9 ns.

Its tasks and nodes are in sets, so what is equal goes by the seed of Python's hashes; devices and
tasks keep the order that they have there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from random import Random
from typing import Any

from heteroplace.errors import MissingPackageError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.native.list import NAMED_PARTS, ListParts
from heteroplace.solve.problem import Problem

UNIT_NS = 10**9
_ROOM = 2**60
_AT_ONCE = 10**18
"""Bytes per second of the ways that stand for loops: any tensor takes 1 ns."""
_LOOPS = "loops"


def require_saga() -> None:
    """Raise MissingPackageError unless SAGA is installed with what its schedulers import."""
    try:
        importlib.import_module("saga.schedulers.parametric.components")
    except ImportError as err:
        raise MissingPackageError(
            f"SAGA cannot be imported ({err}). Install it with: pip install anrg-saga, or without "
            f"what draws and generates workflows: pip install --no-deps anrg-saga && pip install "
            f"pydantic pysmt networkx"
        ) from err


@dataclass(frozen=True)
class SagaInstance:
    """A task graph and a network of SAGA."""

    name: str
    network: Any
    task_graph: Any

    def problem(self) -> Problem:
        """Return the same as solvers here take it."""
        cluster = _cluster_of(self.network)
        ordered = self.task_graph.topological_sort()
        speeds = [node.speed for node in self.network.nodes]
        builder = TaskGraphBuilder(self.name)
        reads: dict[str, list[str]] = {task.name: [] for task in ordered}
        for task in ordered:
            builder.add_task(Task(task.name, "task"), reads[task.name])
            edges = self.task_graph.out_edges(task)
            for edge in edges:
                size = round(edge.size * UNIT_NS)
                reads[edge.target].append(builder.add_tensor(task.name, num_bytes=size))
            if not edges:
                result = builder.add_tensor(task.name, num_bytes=0)
        graph = builder.finalize([result])

        def cost(task: int, device: int) -> Cost:
            if device == len(speeds):
                return Cost.unsupported("it stands for the loops of SAGA's network")
            return Cost.given(round(ordered[task].cost / speeds[device] * UNIT_NS))

        return Problem(graph, cluster, build_table(graph, cluster, cost))


def _cluster_of(network: Any) -> Cluster:
    names = [node.name for node in network.nodes]
    links = [
        Link(f"{names[src]}-{names[dst]}", src, dst, round(speed * UNIT_NS), 0, f"{src}-{dst}")
        for src, dst in permutations(range(len(names)), 2)
        for speed in [network.get_edge(names[src], names[dst]).speed]
    ]
    # A mean over pairs then has the loops too; no copy goes there, as all nodes are linked.
    links += [
        Link(f"{names[src]} {way}", *ends, _AT_ONCE, 0, f"{src} {way}")
        for src in range(len(names))
        for way, ends in (("out", (src, len(names))), ("back", (len(names), src)))
    ]
    names.append(_LOOPS)
    return Cluster(
        "network",
        tuple(Memory(f"of {name}", _ROOM) for name in names),
        tuple(Device(name, "cpu", "", index, index) for index, name in enumerate(names)),
        tuple(links),
        congestion="none",
    )


def saga_instances(scale: int, seed: int) -> list[SagaInstance]:
    """Return instances by SAGA's generators, with 4 nodes.

    Weights are uniform in 0.1..1: its own default is max(min(1e-9, x), 2), which is always 2.

    Parameters
    ----------
    scale
        Levels of trees, and a sixteenth of the length of chains; tasks are about 2**scale.
    """
    from saga.schedulers.data.random import (
        gen_in_trees,
        gen_out_trees,
        gen_parallel_chains,
        gen_random_networks,
    )

    draw = Random(seed)

    def weight(*_of: object) -> float:
        return draw.uniform(0.1, 1.0)

    graphs = {
        "in-tree": gen_in_trees(1, scale, 2, weight, weight)[0],
        "out-tree": gen_out_trees(1, scale, 2, weight, weight)[0],
        "chains": gen_parallel_chains(1, 8, 2 ** max(1, scale - 2), weight, weight)[0],
    }
    found = []
    for name, graph in graphs.items():
        network = gen_random_networks(1, 4, weight, weight)[0]
        found.append(SagaInstance(f"{name}/{len(graph.tasks)}", network, graph))
    return found


def saga_schedulers() -> Mapping[str, tuple[ListParts, Callable[[Any, Any], float]]]:
    """Return SAGA's schedulers that are made of the parts here: name -> parts, makespan.

    Left out: CPoP, whose downward rank counts a task's own time where the paper (equation 7) has
    that of its producer, so its critical path is another; ETF and EST, where many pairs start at
    the same time and the first of a set is taken.
    """
    from saga import schedulers
    from saga.schedulers.parametric import ParametricScheduler
    from saga.schedulers.parametric import components as of

    compare = {"finish": "EFT", "run": "Quickest"}
    orders = {"rank": of.UpwardRanking(), "topological": of.ArbitraryTopological()}
    found: dict[str, tuple[ListParts, Any]] = {
        "HEFT": (NAMED_PARTS["heft"], schedulers.HeftScheduler()),
        "MinMin": (NAMED_PARTS["min-min"], schedulers.MinMinScheduler()),
        "MaxMin": (NAMED_PARTS["max-min"], schedulers.MaxMinScheduler()),
        "MCT": (NAMED_PARTS["mct"], schedulers.MCTScheduler()),
        "MET": (("topological", "run", "end"), schedulers.METScheduler()),
        "OLB": (NAMED_PARTS["olb"], schedulers.OLBScheduler()),
        "Sufferage": (NAMED_PARTS["sufferage"], schedulers.SufferageScheduler()),
    }
    for priority, order in orders.items():
        for choice, name in compare.items():
            for insertion in ("gaps", "end"):
                insert = of.GreedyInsert(
                    append_only=insertion == "end", compare=of.GreedyInsertCompareFuncs(name)
                )
                parametric = ParametricScheduler(initial_priority=order, insert_task=insert)
                parts = (priority, choice, insertion)
                found[f"parametric {','.join(parts)}"] = (parts, parametric)
    return {name: (parts, _makespan_by(scheduler)) for name, (parts, scheduler) in found.items()}


def _makespan_by(scheduler: Any) -> Callable[[Any, Any], float]:
    def makespan(network: Any, task_graph: Any) -> float:
        return float(scheduler.schedule(network, task_graph).makespan)

    return makespan
