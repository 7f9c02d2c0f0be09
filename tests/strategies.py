"""Hypothesis strategies: small clusters, graphs, costs and plans of every awkward shape."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Copy, Plan, Run, Step

AMPLE = 10**9


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
        devices = (
            Device("cpu.0", "cpu", "", 0, 0, (0,)),
            Device("cpu.all", "cpu", "", 0, 0, (0, 1)),
            Device("gpu0", "cuda", "", 0, 1),
        )
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
) -> Instance:
    """A graph and a cluster with random costs; some pairs unsupported."""
    graph = draw(graphs(max_tasks))
    cluster = draw(clusters(is_memory_tight))
    times = st.integers(0, 12)
    choices = times if is_everywhere_allowed else st.one_of(times, times, times, st.none())
    groups: dict[str, int] = {}

    def cost(task: int, device: int) -> Cost:
        value = draw(choices)
        if value is None and device != groups.setdefault(graph.tasks[task].together or "", 0):
            return Cost.unsupported("no kernel")
        return Cost.given(value or 0)

    return Instance(graph, cluster, build_table(graph, cluster, cost))


@st.composite
def instances_with_plan(draw: st.DrawFn, max_tasks: int = 7) -> tuple[Instance, Plan]:
    """An instance with a random valid plan; copies come at random places, also over relays."""
    instance = draw(instances(max_tasks))
    graph, cluster, costs = instance.graph, instance.cluster, instance.costs
    device_of_group: dict[str, int] = {}
    present: dict[int, list[int]] = {
        tensor: [cluster.host] if cluster.host is not None else list(range(len(cluster.memories)))
        for tensor in graph.inputs
    }
    steps: list[Step] = []

    def bring(tensor: int, memory: int) -> None:
        if memory not in present[tensor]:
            src = draw(st.sampled_from(present[tensor]))
            steps.append(Copy(tensor, src, memory, cluster.route(src, memory)))
            present[tensor].append(memory)

    for task_id, task in enumerate(graph.tasks):
        allowed = [d for d in range(len(cluster.devices)) if costs.run_ns(task_id, d) is not None]
        device = draw(st.sampled_from(allowed))
        if task.together is not None:
            device = device_of_group.setdefault(task.together, 0)
        memory = cluster.devices[device].memory
        for tensor in draw(st.permutations(graph.task_inputs[task_id])):
            bring(tensor, memory)
        steps.append(Run(task_id, device))
        for tensor in graph.task_outputs[task_id]:
            present[tensor] = [memory]
    if cluster.host is not None:
        for tensor in draw(st.permutations(sorted(set(graph.outputs)))):
            bring(tensor, cluster.host)
    return instance, Plan(graph.digest(), cluster.digest(), tuple(steps), "random")
