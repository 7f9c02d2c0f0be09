"""Graphs for tests of `heteroplace.coarsen`: weighted ones by letter, and random ones."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np

from heteroplace.coarsen.levels import LevelWeights
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.native.core_graph import Dag
from tests.corpus import corpus
from tests.instances import gpus
from tests.reference.graphs import Edge


@dataclass(frozen=True)
class WeightedDag:
    """Nodes and edges with weights; node ids are a topological order."""

    node_ns: tuple[int, ...]
    edges: dict[Edge, int]

    @property
    def num_nodes(self) -> int:
        return len(self.node_ns)

    def dag(self) -> Dag:
        """The edges as the core has them."""
        return Dag.of_edges(self.num_nodes, [e[0] for e in self.edges], [e[1] for e in self.edges])

    def weights(self) -> LevelWeights:
        """The same, with the edge weights in the order of the core's edges."""
        dag = self.dag()
        ends = zip(dag.src.tolist(), dag.dst.tolist(), strict=True)
        edge_ns = np.array([self.edges[edge] for edge in ends], dtype=np.int64)
        return LevelWeights(dag, np.array(self.node_ns, dtype=np.int64), edge_ns)


@corpus
def weighted_dags(random: Random, max_nodes: int = 8, max_weight: int = 9) -> WeightedDag:
    """Any acyclic graph, empty ones too, with few or many edges; weights may be 0."""
    num_nodes = random.randint(0, max_nodes)
    pairs = [(src, dst) for dst in range(num_nodes) for src in range(dst)]
    density = random.random()
    kept = [pair for pair in pairs if random.random() < density]
    edges = {pair: random.randint(0, max_weight) for pair in kept}
    return WeightedDag(tuple(random.randint(0, max_weight) for _ in range(num_nodes)), edges)


@corpus
def task_graphs(random: Random, max_tasks: int = 8) -> TaskGraph:
    """Tasks of few op types with shared, unread, returned and empty tensors, labels and pins."""
    is_pinned = random.random() < 0.5
    return random_task_graph(random, random.randint(1, max_tasks), is_pinned)


def random_task_graph(random: Random, num_tasks: int, is_pinned: bool = False) -> TaskGraph:
    """A graph for `cluster()`; without `is_pinned` every task is free."""
    builder = TaskGraphBuilder("random")
    tensors = [builder.add_input("x", num_bytes=random.randint(0, 9))]
    for index in range(num_tasks):
        name = f"t{index}"
        task = Task(
            name,
            random.choice(["conv", "bn", "relu", "add"]),
            random.choice([(), (f"{name}.a", f"{name}.b")]),
            random.randint(0, 9),
            random.randint(0, 9),
            random.randint(0, 9),
            random.choice([None, None, ("gpu0",), ("gpu0", "gpu1")]) if is_pinned else None,
            random.choice([None, None, None, "left", "right"]) if is_pinned else None,
        )
        near = tensors[-6:]
        builder.add_task(task, sorted(random.sample(near, min(len(near), random.randint(0, 2)))))
        for _ in range(random.choice([1, 1, 1, 2])):
            tensors.append(builder.add_tensor(name, num_bytes=random.randint(0, 9)))
    return builder.finalize(random.sample(tensors, random.randint(1, 2)))


def lettered(edges: str, run_ns: dict[str, int] | None = None, **sizes: int) -> TaskGraph:
    """Tasks a, b, ... and a tensor of `sizes[edge]` (or 1) bytes for each edge "ab"; sinks return.

    Tasks come in the order of `run_ns`, if it is given, else in that of the letters.
    """
    builder = TaskGraphBuilder("lettered")
    pairs = edges.split()
    for name in run_ns or sorted(set("".join(pairs))):
        builder.add_task(Task(name, "op"), [edge for edge in pairs if edge[1] == name])
        for edge in pairs:
            if edge[0] == name:
                builder.add_tensor(name, num_bytes=sizes.get(edge, 1), name=edge)
        if not any(edge[0] == name for edge in pairs):
            builder.add_tensor(name, num_bytes=1, name=f"{name}.out")
    sources = {edge[0] for edge in pairs}
    ends = [name for name in run_ns or sorted(set("".join(pairs))) if name not in sources]
    return builder.finalize([f"{name}.out" for name in ends])


def chain_of(*tasks: Task) -> TaskGraph:
    """Each task reads one byte of the task before; the last one's is returned."""
    builder = TaskGraphBuilder("chain")
    reads: list[str] = []
    for task in tasks:
        builder.add_task(task, reads)
        reads = [builder.add_tensor(task.name, num_bytes=1)]
    return builder.finalize(reads)


PAIR = gpus({(0, 1): 1, (1, 0): 1}, 2)
"""Two devices that send a byte in a nanosecond."""
