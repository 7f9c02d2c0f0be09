"""Random cases: small clusters, graphs, costs and plans of every awkward shape."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

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
from tests.corpus import corpus

AMPLE = 10**9
MIXED_DEVICES = (
    Device("cpu.0", "cpu", "", 0, 0, (0,)),
    Device("cpu.all", "cpu", "", 0, 0, (0, 1)),
    Device("gpu0", "cuda", "", 0, 1),
)
"""Of two memories; two share a core."""


def num_cases(count: int) -> settings:
    """Settings of a property: so many random cases here, at least 500 where CI is set, other ones
    for each commit (see `tests.conftest`), and 1,000 in `make test-all`."""
    return _at_least(count, 1000 if _is_set("ALL_CASES") else 500 if _is_set("CI") else 0)


def exact_cases(count: int) -> settings:
    """The same where a case takes 4 ms or more (it runs an exact solver or several solvers, tries
    everything, compiles, or checks large files): at least 50 where CI is set."""
    return _at_least(count, 1000 if _is_set("ALL_CASES") else 50 if _is_set("CI") else 0)


def _is_set(variable: str) -> bool:
    return bool(os.environ.get(variable))


def _at_least(count: int, least: int) -> settings:
    # Not derandomized, which Hypothesis does where CI is set: the seed is that of the commit.
    return settings(max_examples=max(count, least), deadline=None, derandomize=False)


@dataclass(frozen=True)
class Instance:
    """A graph, a cluster and the costs."""

    graph: TaskGraph
    cluster: Cluster
    costs: CostTable


def random_cluster(
    random: Random, is_memory_tight: bool = False, has_many_devices: bool = False
) -> Cluster:
    """1-3 devices: of one memory with shared cores, of one memory each, or mixed; many are 9 to 12
    of one memory each."""
    kind = "separate" if has_many_devices else random.choice(["cores", "separate", "mixed", "one"])

    def memory(name: str) -> Memory:
        return Memory(name, random.randint(1, 60) if is_memory_tight else AMPLE)

    host = random.choice([None, 0])
    if kind in ("cores", "one"):
        cores = [(0,), (1,), (0, 1)] if kind == "cores" else [(0,)]
        devices = tuple(Device(f"cpu.{i}", "cpu", "", 0, 0, c) for i, c in enumerate(cores))
        return Cluster("box", (memory("ram"),), devices, host=host)
    devices, count = MIXED_DEVICES, 2
    if kind == "separate":
        count = random.randint(9, 12) if has_many_devices else random.randint(2, 3)
        devices = tuple(Device(f"gpu{i}", "cuda", "", i, i) for i in range(count))
    memories = tuple(memory(f"m{i}") for i in range(count))
    return Cluster("box", memories, devices, _random_links(random, count), host=host)


def _random_links(random: Random, count: int) -> tuple[Link, ...]:
    """All pairs, or a line of memories; channels per link, per pair, or one bus."""
    is_line = random.random() < 0.5
    sharing = random.choice(["link", "pair", "bus"])
    links = []
    for src in range(count):
        for dst in range(count):
            if src == dst or (is_line and abs(src - dst) > 1):
                continue
            name = f"{src}-{dst}"
            channel = {"link": name, "pair": f"{min(src, dst)}-{max(src, dst)}", "bus": "bus"}
            bandwidth = random.choice([1, 2, 5]) * 10**9
            links.append(Link(name, src, dst, bandwidth, random.randint(0, 2), channel[sharing]))
    return tuple(links)


@corpus
def graphs(random: Random, max_tasks: int = 5) -> TaskGraph:
    """Small graphs."""
    return random_graph(random, max_tasks)


def random_graph(random: Random, max_tasks: int) -> TaskGraph:
    """Any shape, several outputs per task, shared tensors, zero sizes, groups."""
    builder = TaskGraphBuilder("random")
    tensors = [builder.add_input("x", (random.randint(0, 9),), "int8")]
    made = []
    for index in range(random.randint(1, max_tasks)):
        reads = _some(random, tensors, 0)
        task = Task(
            f"t{index}",
            "op",
            weight_bytes=random.randint(0, 9),
            workspace_bytes=random.choice([0, 0, 4]),
            together=random.choice([None, None, None, "g"]),
        )
        builder.add_task(task, reads)
        for _ in range(random.choice([1, 1, 2])):
            made.append(builder.add_tensor(task.name, (random.randint(0, 9),), "int8"))
        tensors.extend(made[-2:])
    outputs = _some(random, tensors, 1)
    if random.random() < 0.2:
        outputs.append(outputs[0])  # the same one returned twice
    return builder.finalize(outputs)


def _some(random: Random, values: list[str], least: int) -> list[str]:
    """At most three different values in any order."""
    different = list(dict.fromkeys(values))
    return random.sample(different, random.randint(least, min(3, len(different))))


@corpus
def instances(
    random: Random,
    max_tasks: int = 5,
    is_memory_tight: bool = False,
    is_everywhere_allowed: bool = False,
    max_batch: int = 1,
    has_modes: bool = False,
) -> Instance:
    """A graph and a cluster with random costs; see `random_instance`."""
    return random_instance(
        random, max_tasks, is_memory_tight, is_everywhere_allowed, max_batch, has_modes
    )


def random_instance(
    random: Random,
    max_tasks: int = 5,
    is_memory_tight: bool = False,
    is_everywhere_allowed: bool = False,
    max_batch: int = 1,
    has_modes: bool = False,
    has_many_devices: bool = False,
) -> Instance:
    """A graph and a cluster with random costs; some pairs unsupported.

    `has_modes`: any congestion mode, and devices with and without copy engines.
    """
    graph = random_graph(random, max_tasks)
    cluster = random_cluster(random, is_memory_tight, has_many_devices)
    if has_modes:
        cluster = in_any_mode(random, cluster)
    if max_batch > 1:
        cluster = _with_batch_sizes(random, cluster, max_batch)
    groups: dict[str, int] = {}

    def cost(task: int, device: int, batch: int = 1) -> Cost:
        is_refused = not is_everywhere_allowed and random.random() < 0.25
        if is_refused and device != groups.setdefault(graph.tasks[task].together or "", 0):
            return Cost.unsupported("no kernel")
        return Cost.given(0 if is_refused else random.randint(0, 12))

    sizes = sorted({size for device in cluster.devices for size in device.batch_sizes})
    return Instance(graph, cluster, build_table(graph, cluster, cost, tuple(sizes)))


def in_any_mode(random: Random, cluster: Cluster) -> Cluster:
    """The cluster with any congestion mode, and devices with and without copy engines."""
    devices = tuple(
        replace(device, copy_engines=random.choice(COPY_ENGINES)) for device in cluster.devices
    )
    return replace(cluster, devices=devices, congestion=random.choice(CONGESTION_MODES))


@corpus
def clusters(random: Random) -> Cluster:
    """Clusters in any mode, with batches, of ample or tight memory."""
    cluster = random_cluster(random, is_memory_tight=random.random() < 0.5)
    return _with_batch_sizes(random, in_any_mode(random, cluster), 4)


@st.composite
def described_clusters(draw: st.DrawFn) -> Cluster:
    """Clusters with any modes, batches, figures, units and awkward names; for their text forms."""
    cluster = draw(clusters())
    words = st.one_of(st.just(""), st.text(max_size=5))
    numbers = st.one_of(st.integers(0, 10**13), st.integers(0, 40).map(lambda n: n * 10**9))
    figures = st.one_of(st.none(), numbers)
    hosts = [draw(words) for _ in cluster.memories]
    devices = tuple(
        replace(
            device,
            name=f"{device.name}{draw(words)}",
            kind=draw(words),
            target=draw(words),
            host=hosts[device.memory],
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
        Memory(
            f"{memory.name}{draw(words)}",
            draw(st.integers(1, 2**50)),
            host if draw(st.booleans()) else "",
        )
        for memory, host in zip(cluster.memories, hosts, strict=True)
    )
    return replace(cluster, name=draw(words), memories=memories, devices=devices, links=links)


def _with_batch_sizes(random: Random, cluster: Cluster, max_batch: int) -> Cluster:
    """Every device takes single items, and some larger batches."""
    devices = tuple(
        replace(
            device,
            batch_sizes=(1, *(size for size in range(2, max_batch + 1) if random.random() < 0.5)),
        )
        for device in cluster.devices
    )
    return replace(cluster, devices=devices)


@corpus
def instances_with_plan(
    random: Random, max_tasks: int = 7, max_items: int = 1, has_modes: bool = False
) -> tuple[Instance, Plan]:
    """An instance with a random valid plan; see `random_instance_with_plan`."""
    return random_instance_with_plan(random, max_tasks, max_items, has_modes)


def random_instance_with_plan(
    random: Random, max_tasks: int = 7, max_items: int = 1, has_modes: bool = False
) -> tuple[Instance, Plan]:
    """An instance with a random valid plan.

    Copies come at random places, also over relays; tasks of different branches and items come in
    any order; items are run and copied one by one or together.
    """
    instance = random_instance(random, max_tasks, max_batch=max_items, has_modes=has_modes)
    num_items = random.randint(1, max_items)
    graph, cluster = instance.graph, instance.cluster
    steps = _Steps(random, graph, cluster, num_items)
    waiting = [
        run for task in range(len(graph.tasks)) for run in _runs(random, instance, task, num_items)
    ]
    while waiting:
        ready = [run for run in waiting if steps.is_ready(run)]
        run = random.choice(ready) if num_items > 1 else ready[0]
        waiting.remove(run)
        steps.add(run)
    if cluster.host is not None:
        for tensor in _shuffled(random, sorted(set(graph.outputs))):
            steps.bring(tensor, cluster.host, tuple(range(num_items)))
    plan = Plan(graph.digest(), cluster.digest(), tuple(steps.found), "random", items=num_items)
    return instance, plan


def random_plan(random: Random, graph: TaskGraph, cluster: Cluster) -> Plan:
    """A plan of one item: every task anywhere, in any order that is allowed, with its copies."""
    steps = _Steps(random, graph, cluster, 1)
    waiting = [
        Run(task, random.randrange(len(cluster.devices))) for task in range(len(graph.tasks))
    ]
    while waiting:
        run = random.choice([run for run in waiting if steps.is_ready(run)])
        waiting.remove(run)
        steps.add(run)
    assert cluster.host is not None
    for tensor in _shuffled(random, sorted(set(graph.outputs))):
        steps.bring(tensor, cluster.host, (0,))
    return Plan(graph.digest(), cluster.digest(), tuple(steps.found), "random")


def _shuffled(random: Random, values: Sequence[int]) -> list[int]:
    return random.sample(values, len(values))


def _runs(random: Random, instance: Instance, task: int, num_items: int) -> list[Run]:
    """Batches of a task that hold each item once."""
    devices = range(len(instance.cluster.devices))
    if instance.graph.tasks[task].together is not None:
        devices = range(1)
    runs = []
    left = list(range(num_items))
    while left:
        items = [left[0], *(item for item in left[1:] if random.random() < 0.5)]
        allowed = [
            device
            for device in devices
            if len(items) in instance.cluster.devices[device].batch_sizes
            and instance.costs.run_ns(task, device, len(items)) is not None
        ]
        if not allowed:
            items = items[:1]
            allowed = [d for d in devices if instance.costs.run_ns(task, d) is not None]
        runs.append(Run(task, random.choice(allowed), tuple(items)))
        left = [item for item in left if item not in items]
    return runs


class _Steps:
    """The steps of a plan so far, and what they leave where."""

    def __init__(self, random: Random, graph: TaskGraph, cluster: Cluster, num_items: int) -> None:
        self.found: list[Step] = []
        self._random = random
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
        for tensor in _shuffled(self._random, self._graph.task_inputs[run.task]):
            self.bring(tensor, memory, run.items)
        self.found.append(run)
        for tensor in self._graph.task_outputs[run.task]:
            self._present.update(((tensor, item), [memory]) for item in run.items)

    def bring(self, tensor: int, memory: int, items: tuple[int, ...]) -> None:
        """Add copies of the items that are not in `memory`."""
        left = [item for item in items if memory not in self._present[tensor, item]]
        while left:
            src = self._random.choice(self._present[tensor, left[0]])
            copied = left[:1]
            if len(left) > 1 and self._random.random() < 0.5:
                copied = [item for item in left if src in self._present[tensor, item]]
            route = self._cluster.route(src, memory)
            self.found.append(Copy(tensor, src, memory, route, tuple(copied)))
            for item in copied:
                self._present[tensor, item].append(memory)
            left = [item for item in left if item not in copied]
