"""Hypothesis strategies: small clusters, graphs, costs and plans of every awkward shape."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st

from heteroplace.model.cluster import (
    CONGESTION_MODES,
    COPY_ENGINES,
    Cluster,
    Device,
    Link,
    Memory,
)
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Copy, Plan, Run, Step

AMPLE = 10**9
MIXED_DEVICES = (
    Device("cpu.0", "cpu", "", 0, 0, (0,)),
    Device("cpu.all", "cpu", "", 0, 0, (0, 1)),
    Device("gpu0", "cuda", "", 0, 1),
)
"""Of two memories; two share a core."""


def num_cases(count: int) -> settings:
    """Settings of a property: so many random cases here, and at least 1,000 where CI is set."""
    return settings(max_examples=max(count, 1000 if os.environ.get("CI") else 0), deadline=None)


@dataclass(frozen=True)
class Instance:
    """A graph, a cluster and the costs."""

    graph: TaskGraph
    cluster: Cluster
    costs: CostTable


@st.composite
def clusters(draw: st.DrawFn, is_memory_tight: bool = False) -> Cluster:
    """1-3 devices: of one memory with shared cores, of one memory each, or mixed."""
    kind = draw(st.sampled_from(["cores", "separate", "mixed", "one"]))
    sizes = st.integers(1, 60) if is_memory_tight else st.just(AMPLE)
    if kind in ("cores", "one"):
        cores = [(0,), (1,), (0, 1)] if kind == "cores" else [(0,)]
        devices = tuple(Device(f"cpu.{i}", "cpu", "", 0, 0, c) for i, c in enumerate(cores))
        memories: tuple[Memory, ...] = (Memory("ram", draw(sizes)),)
        return Cluster("box", memories, devices, host=draw(st.sampled_from([None, 0])))
    if kind == "separate":
        count = draw(st.integers(2, 3))
        devices = tuple(Device(f"gpu{i}", "cuda", "", i, i) for i in range(count))
    else:
        count = 2
        devices = MIXED_DEVICES
    memories = tuple(Memory(f"m{i}", draw(sizes)) for i in range(count))
    links = draw(_links(count))
    return Cluster("box", memories, devices, links, host=draw(st.sampled_from([None, 0])))


@st.composite
def _links(draw: st.DrawFn, count: int) -> tuple[Link, ...]:
    """All pairs, or a line of memories; channels per link, per pair, or one bus."""
    is_line = draw(st.booleans())
    sharing = draw(st.sampled_from(["link", "pair", "bus"]))
    links = []
    for src in range(count):
        for dst in range(count):
            if src == dst or (is_line and abs(src - dst) > 1):
                continue
            name = f"{src}-{dst}"
            channel = {"link": name, "pair": f"{min(src, dst)}-{max(src, dst)}", "bus": "bus"}
            bandwidth = draw(st.sampled_from([1, 2, 5])) * 10**9
            links.append(Link(name, src, dst, bandwidth, draw(st.integers(0, 2)), channel[sharing]))
    return tuple(links)


@st.composite
def graphs(draw: st.DrawFn, max_tasks: int = 5) -> TaskGraph:
    """Small graphs: any shape, several outputs per task, shared tensors, zero sizes, groups."""
    num_tasks = draw(st.integers(1, max_tasks))
    builder = TaskGraphBuilder("random")
    tensors = [builder.add_input("x", (draw(st.integers(0, 9)),), "int8")]
    made = []
    for index in range(num_tasks):
        reads = draw(st.lists(st.sampled_from(tensors), max_size=3, unique=True))
        task = Task(
            f"t{index}",
            "op",
            weight_bytes=draw(st.integers(0, 9)),
            workspace_bytes=draw(st.sampled_from([0, 0, 4])),
            together=draw(st.sampled_from([None, None, None, "g"])),
        )
        builder.add_task(task, reads)
        for _ in range(draw(st.sampled_from([1, 1, 2]))):
            made.append(builder.add_tensor(task.name, (draw(st.integers(0, 9)),), "int8"))
        tensors.extend(made[-2:])
    outputs = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3))
    return builder.finalize(outputs)


@st.composite
def instances(
    draw: st.DrawFn,
    max_tasks: int = 5,
    is_memory_tight: bool = False,
    is_everywhere_allowed: bool = False,
    max_batch: int = 1,
    has_modes: bool = False,
) -> Instance:
    """A graph and a cluster with random costs; some pairs unsupported.

    `has_modes`: any congestion mode, and devices with and without copy engines.
    """
    graph = draw(graphs(max_tasks))
    cluster = draw(clusters(is_memory_tight))
    if has_modes:
        cluster = draw(modes(cluster))
    if max_batch > 1:
        cluster = draw(_batch_sizes(cluster, max_batch))
    times = st.integers(0, 12)
    choices = times if is_everywhere_allowed else st.one_of(times, times, times, st.none())
    groups: dict[str, int] = {}

    def cost(task: int, device: int, batch: int = 1) -> Cost:
        value = draw(choices)
        if value is None and device != groups.setdefault(graph.tasks[task].together or "", 0):
            return Cost.unsupported("no kernel")
        return Cost.given(value or 0)

    sizes = sorted({size for device in cluster.devices for size in device.batch_sizes})
    return Instance(graph, cluster, build_table(graph, cluster, cost, tuple(sizes)))


@st.composite
def modes(draw: st.DrawFn, cluster: Cluster) -> Cluster:
    """The cluster with any congestion mode, and devices with and without copy engines."""
    devices = tuple(
        replace(device, copy_engines=draw(st.sampled_from(COPY_ENGINES)))
        for device in cluster.devices
    )
    congestion = draw(st.sampled_from(CONGESTION_MODES))
    return replace(cluster, devices=devices, congestion=congestion)


@st.composite
def described_clusters(draw: st.DrawFn) -> Cluster:
    """Clusters with any modes, batches, figures, units and awkward names; for their text forms."""
    cluster = draw(modes(draw(clusters(is_memory_tight=draw(st.booleans())))))
    cluster = draw(_batch_sizes(cluster, 4))
    words = st.one_of(st.just(""), st.text(max_size=5))
    numbers = st.one_of(st.integers(0, 10**13), st.integers(0, 40).map(lambda n: n * 10**9))
    figures = st.one_of(st.none(), numbers)
    devices = tuple(
        replace(
            device,
            name=f"{device.name}{draw(words)}",
            kind=draw(words),
            target=draw(words),
            host=draw(words),
            flops_per_second=draw(figures),
            memory_bytes_per_second=draw(figures),
            launch_ns=draw(numbers),
            model=draw(words),
        )
        for device in cluster.devices
    )
    measured = st.dictionaries(st.integers(1, 2**40), numbers, max_size=3)
    links = tuple(
        replace(
            link,
            name=f"{link.name}{draw(words)}",
            latency_ns=draw(numbers),
            channel=draw(words),
            measured=tuple(sorted(draw(measured).items())),
        )
        for link in cluster.links
    )
    memories = tuple(
        Memory(f"{memory.name}{draw(words)}", draw(st.integers(1, 2**50)))
        for memory in cluster.memories
    )
    return replace(cluster, name=draw(words), memories=memories, devices=devices, links=links)


@st.composite
def _batch_sizes(draw: st.DrawFn, cluster: Cluster, max_batch: int) -> Cluster:
    """Every device takes single items, and some larger batches."""
    larger = st.lists(st.integers(2, max_batch), unique=True)
    devices = tuple(
        replace(device, batch_sizes=(1, *sorted(draw(larger)))) for device in cluster.devices
    )
    return replace(cluster, devices=devices)


@st.composite
def instances_with_plan(
    draw: st.DrawFn, max_tasks: int = 7, max_items: int = 1, has_modes: bool = False
) -> tuple[Instance, Plan]:
    """An instance with a random valid plan.

    Copies come at random places, also over relays; tasks of different branches and items come in
    any order; items are run and copied one by one or together.
    """
    instance = draw(instances(max_tasks, max_batch=max_items, has_modes=has_modes))
    num_items = draw(st.integers(1, max_items))
    graph, cluster = instance.graph, instance.cluster
    steps = _Steps(draw, graph, cluster, num_items)
    waiting = [
        run for task in range(len(graph.tasks)) for run in _runs(draw, instance, task, num_items)
    ]
    while waiting:
        ready = [run for run in waiting if steps.is_ready(run)]
        run = draw(st.sampled_from(ready)) if num_items > 1 else ready[0]
        waiting.remove(run)
        steps.add(run)
    if cluster.host is not None:
        for tensor in draw(st.permutations(sorted(set(graph.outputs)))):
            steps.bring(tensor, cluster.host, tuple(range(num_items)))
    plan = Plan(graph.digest(), cluster.digest(), tuple(steps.found), "random", items=num_items)
    return instance, plan


def _runs(draw: st.DrawFn, instance: Instance, task: int, num_items: int) -> list[Run]:
    """Batches of a task that hold each item once."""
    devices = range(len(instance.cluster.devices))
    if instance.graph.tasks[task].together is not None:
        devices = range(1)
    runs = []
    left = list(range(num_items))
    while left:
        items = [left[0], *(item for item in left[1:] if draw(st.booleans()))]
        allowed = [
            device
            for device in devices
            if len(items) in instance.cluster.devices[device].batch_sizes
            and instance.costs.run_ns(task, device, len(items)) is not None
        ]
        if not allowed:
            items = items[:1]
            allowed = [d for d in devices if instance.costs.run_ns(task, d) is not None]
        runs.append(Run(task, draw(st.sampled_from(allowed)), tuple(items)))
        left = [item for item in left if item not in items]
    return runs


class _Steps:
    """The steps of a plan so far, and what they leave where."""

    def __init__(self, draw: st.DrawFn, graph: TaskGraph, cluster: Cluster, num_items: int) -> None:
        self.found: list[Step] = []
        self._draw = draw
        self._graph = graph
        self._cluster = cluster
        homes = range(len(cluster.memories)) if cluster.host is None else [cluster.host]
        self._present: dict[tuple[int, int], list[int]] = {
            (tensor, item): list(homes) for tensor in graph.inputs for item in range(num_items)
        }
        """Memories of each (tensor, item)."""

    def is_ready(self, run: Run) -> bool:
        """Say whether everything that `run` reads exists somewhere."""
        reads = self._graph.task_inputs[run.task]
        return all((tensor, item) in self._present for tensor in reads for item in run.items)

    def add(self, run: Run) -> None:
        """Add a run and the copies that it needs."""
        memory = self._cluster.devices[run.device].memory
        for tensor in self._draw(st.permutations(self._graph.task_inputs[run.task])):
            self.bring(tensor, memory, run.items)
        self.found.append(run)
        for tensor in self._graph.task_outputs[run.task]:
            self._present.update(((tensor, item), [memory]) for item in run.items)

    def bring(self, tensor: int, memory: int, items: tuple[int, ...]) -> None:
        """Add copies of the items that are not in `memory`."""
        left = [item for item in items if memory not in self._present[tensor, item]]
        while left:
            src = self._draw(st.sampled_from(self._present[tensor, left[0]]))
            copied = left[:1]
            if len(left) > 1 and self._draw(st.booleans()):
                copied = [item for item in left if src in self._present[tensor, item]]
            route = self._cluster.route(src, memory)
            self.found.append(Copy(tensor, src, memory, route, tuple(copied)))
            for item in copied:
                self._present[tensor, item].append(memory)
            left = [item for item in left if item not in copied]
