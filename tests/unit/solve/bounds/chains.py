"""Random instances that bounds find hard: chains of forks and joins, tight memory."""

from __future__ import annotations

from random import Random

from heteroplace.errors import HeteroPlaceError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from tests.corpus import corpus
from tests.instances import problem_of
from tests.reference.brute_force import optimal_makespan
from tests.strategies import AMPLE, MIXED_DEVICES, Instance, in_any_mode


@corpus
def chains(
    random: Random, max_tasks: int = 5, scale: int = 1, is_memory_ample: bool = False
) -> Instance:
    """A chain with forks and joins, on 2-3 devices of 2-3 memories in any mode; times times
    `scale`."""
    graph = _graph(random, max_tasks, scale)
    cluster = _cluster(random, graph, scale, is_memory_ample)
    times = [0, 1, 2, 3, 5, 8, 13]
    rows = [[random.choice(times) * scale for _ in cluster.devices] for _ in graph.tasks]
    costs = build_table(graph, cluster, lambda task, device: Cost.given(rows[task][device]))
    return Instance(graph, cluster, costs)


def _graph(random: Random, max_tasks: int, scale: int) -> TaskGraph:
    count = random.randint(1, max_tasks)
    sizes = [0, 1, 2, 9, 30]
    builder = TaskGraphBuilder("chain")
    read = [builder.add_input("x", num_bytes=random.choice(sizes) * scale)]
    made: list[str] = []

    def add(reads: list[str]) -> list[str]:
        task = Task(
            f"t{len(tasks)}",
            "op",
            weight_bytes=random.choice([0, 0, 3, 9, 20]) * scale,
            workspace_bytes=random.choice([0, 0, 4]) * scale,
            together=random.choice([None, None, None, None, "g"]),
        )
        tasks.append(task)
        builder.add_task(task, list(dict.fromkeys(reads)))
        names = [
            builder.add_tensor(task.name, num_bytes=random.choice(sizes) * scale)
            for _ in range(random.choice([1, 1, 1, 2]))
        ]
        made.extend(names)
        return names

    tasks: list[Task] = []
    while len(tasks) < count:
        if count - len(tasks) < 3 or random.random() < 0.5:
            read = add(read)
            continue
        left, right = add([random.choice(read)]), add([random.choice(read)])
        passing = [random.choice(made)] if random.random() < 0.5 else []
        read = add([left[0], right[0], *passing])
    outputs = random.choices(made, k=random.randint(0, 2))
    return builder.finalize(list(dict.fromkeys([*outputs, made[-1]])))


def _cluster(random: Random, graph: TaskGraph, scale: int, is_memory_ample: bool) -> Cluster:
    devices: tuple[Device, ...] = MIXED_DEVICES
    count = random.choice([0, 2, 2, 3])
    if count:
        devices = tuple(Device(f"gpu{i}", "cuda", "", i, i) for i in range(count))
    num_memories = count or 2
    need = sum(task.weight_bytes for task in graph.tasks)
    need += sum(tensor.bytes for tensor in graph.tensors)
    parts = [AMPLE] if is_memory_ample else [AMPLE, 110, 80, 60, 45]
    memories = []
    for index in range(num_memories):
        part = random.choice(parts)
        memories.append(Memory(f"m{index}", AMPLE if part == AMPLE else 1 + need * part // 100))
    is_bus = random.random() < 0.5
    links = tuple(
        Link(
            f"{src}-{dst}",
            src,
            dst,
            random.choice([1, 2, 5]) * 10**9,
            random.randint(0, 1) * scale,
            "bus" if is_bus else f"{src}-{dst}",
        )
        for src in range(num_memories)
        for dst in range(num_memories)
        if src != dst
    )
    host = random.choice([None, 0, num_memories - 1])
    return in_any_mode(random, Cluster("box", tuple(memories), devices, links, host=host))


def optimum_of(case: Instance) -> int | None:
    """By brute force; None if there is no plan."""
    try:
        problem_of(case).native  # noqa: B018
    except HeteroPlaceError:
        return None
    return optimal_makespan(case.graph, case.cluster, case.costs)
