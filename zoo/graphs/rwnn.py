"""Randomly wired networks as task graphs, with the generators and the stacks of DiviML (section V).

A module is a random graph (`demo/wirings.py`) on N nodes, with input tasks before it and output
tasks behind it. With one channel there is one of each: one source and one sink. With k channels
there are k of each, and output c of a module feeds input c of the next one. Which nodes without
predecessors read which inputs, and which outputs read which nodes without successors:

- strong dependence (sdep): each end reads, or feeds, at least one channel, drawn at random;
- weak dependence (wdep): every pair is drawn at random, so an end may have no channel at all.

In both every channel is used at each side. The paper does not say how the draws are made; here a
pair is taken with probability 1/2 and an end (sdep) or channel (both) without any gets one.

Costs: the paper gives the mean time on an A100 (25.84 ms) and the ratios of the devices, CPU : T4 :
A100 = 7.10 : 1.26 : 1, but its results need ratios that differ much from task to task: with uniform
ratios no plan is more than 1.93 times as fast as the A100 alone, and it reports 2.64. So each task
has ratios of its own, log-normal, scaled so that the sums over the graph have the paper's ratios.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from heteroplace.demo.wirings import last_nodes, wiring
from heteroplace.errors import GraphError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, table_from_rows
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder

DEVICE_RATIOS = {"cpu": 7.10, "t4": 1.26, "a100": 1.0}
"""Mean run time of RWNN modules by device of `divi_node`, A100 = 1."""
MEAN_TASK_NS = 25_840_000 / 34
"""On the A100: the paper's mean time of a network over the 34 tasks of a module with N = 32."""
END_SHARE = 0.1
"""Mean time of an input or output task (a sum, a mean) over that of a node (a convolution)."""
RATIO_SIGMA = 0.6
"""Standard deviation of the logarithm of a task's time on each device.

With it HEFT is 2.2 to 2.4 times as fast as the best device on stacks of ten ER modules with N = 10;
the paper reports 2.1 to 2.3."""
WORK_SIGMA = 0.5
"""Standard deviation of the logarithm of a task's amount of work."""
CHANNELS = 109
"""Feature maps of a node, as in the large regime of the randomly wired networks' paper."""
MAP_SIZE = 28


@dataclass(frozen=True)
class RwnnStack:
    """What a stack of modules is made of."""

    kind: str
    """One of MIN_NODES: "ws", "er" or "ba"."""
    nodes: int
    modules: int = 1
    channels: int = 1
    is_strong: bool = True
    """Strong dependence (sdep), else weak (wdep); the same for one channel."""
    seed: int = 0

    @property
    def name(self) -> str:
        """Short name, e.g. "er32x10-sdep2"."""
        suffix = ""
        if self.channels > 1:
            suffix = f"-{'sdep' if self.is_strong else 'wdep'}{self.channels}"
        return f"{self.kind}{self.nodes}x{self.modules}{suffix}"


def rwnn_graph(stack: RwnnStack) -> TaskGraph:
    """Return the graph: modules * (nodes + 2 * channels) tasks. Equal seeds give equal graphs.

    Raises
    ------
    GraphError
        The kind is unknown, a count is below 1, or there are too few nodes for the kind.
    MissingPackageError
        networkx is not installed.
    """
    if stack.modules < 1 or stack.channels < 1:
        raise GraphError(
            f"stack {stack.name!r}: needs >= 1 modules and channels; got {stack.modules}, "
            f"{stack.channels}"
        )
    writer = _Writer(stack)
    values = [writer.builder.add_input(f"x{c}", writer.shape, "float32") for c in _channels(stack)]
    for module in range(stack.modules):
        values = writer.module(module, values)
    return writer.builder.finalize(values)


def rwnn_costs(graph: TaskGraph, cluster: Cluster, seed: int = 0) -> CostTable:
    """Return costs on the devices of `divi_node` with the paper's mean ratios.

    Parameters
    ----------
    seed
        Of the amounts of work and of the ratios; equal seeds give equal costs.

    Raises
    ------
    GraphError
        A device is not one of DEVICE_RATIOS.
    """
    unknown = [device.name for device in cluster.devices if device.name not in DEVICE_RATIOS]
    if unknown:
        raise GraphError(
            f"no mean ratio is known for device {', '.join(unknown)} of cluster {cluster.name!r}; "
            f"known: {', '.join(DEVICE_RATIOS)}"
        )
    # Per-task draws come in the order of the tasks, whatever the devices.
    generator = random.Random(f"rwnn-costs-{seed}")
    columns: dict[str, list[float]] = {name: [] for name in DEVICE_RATIOS}
    for task in graph.tasks:
        share = 1.0 if task.op == "node" else END_SHARE
        work = share * generator.lognormvariate(0.0, WORK_SIGMA)
        for column in columns.values():
            column.append(work * generator.lognormvariate(0.0, RATIO_SIGMA))
    nodes = sum(1.0 if task.op == "node" else END_SHARE for task in graph.tasks)
    scaled = {}
    for name, column in columns.items():
        factor = nodes * MEAN_TASK_NS * DEVICE_RATIOS[name] / math.fsum(column)
        scaled[name] = [max(1, round(factor * value)) for value in column]
    rows = tuple(
        tuple(Cost.given(scaled[device.name][task]) for device in cluster.devices)
        for task in range(len(graph.tasks))
    )
    return table_from_rows(graph, cluster, rows)


def _channels(stack: RwnnStack) -> range:
    return range(stack.channels)


class _Writer:
    """Adds modules to a builder."""

    def __init__(self, stack: RwnnStack) -> None:
        self.builder = TaskGraphBuilder(stack.name)
        self.shape = (1, CHANNELS, MAP_SIZE, MAP_SIZE)
        self._stack = stack
        self._generator = random.Random(f"rwnn-{stack.kind}-{stack.nodes}-{stack.seed}")

    def module(self, index: int, values: Sequence[str]) -> list[str]:
        """Add one module that reads one value per channel; return one output per channel."""
        stack, name = self._stack, f"module{index}"
        before = wiring(stack.kind, stack.nodes, self._generator.randrange(2**31))
        heads = [v for v in range(stack.nodes) if not before[v]]
        tails = last_nodes(before)
        inputs = [
            self._add(f"{name}.in{c}", "in", [value], weights=0) for c, value in enumerate(values)
        ]
        of_head = self._draw(len(heads))
        node_values: list[str] = []
        # Depthwise 3x3 and pointwise 1x1 convolutions with batch normalisation.
        weights = CHANNELS * (9 + CHANNELS + 4)
        for node in range(stack.nodes):
            reads = [node_values[source] for source in before[node]]
            if not reads:
                reads = [inputs[channel] for channel in of_head[heads.index(node)]]
            node_values.append(self._add(f"{name}.node{node}", "node", reads, weights))
        of_tail = self._draw(len(tails))
        outputs = []
        for channel in _channels(stack):
            reads = [
                node_values[tail]
                for tail, channels in zip(tails, of_tail, strict=True)
                if channel in channels
            ]
            outputs.append(self._add(f"{name}.out{channel}", "out", reads, weights=0))
        return outputs

    def _draw(self, num_ends: int) -> list[list[int]]:
        """For each end its channels, ascending; every channel occurs."""
        stack, generator = self._stack, self._generator
        if stack.channels == 1:
            return [[0] for _ in range(num_ends)]
        drawn = []
        for _ in range(num_ends):
            channels = {c for c in _channels(stack) if generator.random() < 0.5}
            if stack.is_strong and not channels:
                channels.add(generator.randrange(stack.channels))
            drawn.append(channels)
        for channel in _channels(stack):
            if not any(channel in channels for channels in drawn):
                drawn[generator.randrange(num_ends)].add(channel)
        return [sorted(channels) for channels in drawn]

    def _add(self, name: str, op: str, reads: list[str], weights: int) -> str:
        pixels = MAP_SIZE * MAP_SIZE
        flops = pixels * (2 * weights if weights else CHANNELS * max(1, len(reads)))
        self.builder.add_task(Task(name, op, flops=flops, weight_bytes=4 * weights), reads)
        return self.builder.add_tensor(name, self.shape, "float32")
