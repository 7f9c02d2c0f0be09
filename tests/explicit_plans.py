"""Random explicit schedules: replicas, lanes and microbatches of a training step, in any order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.collectives import collective_op
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Collective, Copy, Plan, Run, Step
from tests.corpus import corpus
from tests.reference.simulator import needs, puts
from tests.strategies import AMPLE, Instance, in_any_mode

_BATCHES = (1, 2, 3)
_ROWS = 6


@dataclass(frozen=True)
class Shape:
    """Of a training step: replicas, lanes, items of each replica, layers, and the last collective
    of each gradient: "all_reduce", or "reduce" to an owner, which broadcasts the weight."""

    replicas: int
    lanes: int
    micro_batches: int
    layers: int
    sums: tuple[str, ...]
    gathers: bool = False
    """Lanes make parts, not partial sums."""

    @property
    def items(self) -> int:
        """Of the plan."""
        return self.replicas * self.micro_batches

    def device(self, replica: int, lane: int) -> int:
        """The device of a lane."""
        return replica * self.lanes + lane


@corpus
def explicit_plans(random: Random) -> tuple[Instance, Plan]:
    """A training step over some devices, and a valid plan of it; see `random_explicit_plan`."""
    return random_explicit_plan(random)


def random_explicit_plan(random: Random) -> tuple[Instance, Plan]:
    """An instance with collectives, gradients, state and shared weights, and a valid plan.

    Any congestion mode; devices with and without copy engines.
    """
    layers = random.randint(1, 2)
    lanes = random.choice([1, 1, 2])
    replicas = random.choice([1, 2, 2, 3])
    shape = Shape(
        replicas,
        lanes,
        random.randint(1, 4 - replicas),
        layers,
        tuple(random.choice(["all_reduce", "reduce"]) for _ in range(layers * lanes)),
        random.random() < 0.5,
    )
    graph = training_graph(shape, random)
    cluster = in_any_mode(random, training_cluster(shape, random))
    costs = build_table(
        graph, cluster, lambda *_: Cost.given(random.randint(0, 12)), batches=_BATCHES
    )
    steps = training_steps(shape, graph, cluster, random)
    plan = Plan(graph.digest(), cluster.digest(), (), "random", items=shape.items)
    shuffled = _shuffled(random, graph, cluster, replace(plan, steps=tuple(steps)))
    return Instance(graph, cluster, costs), replace(plan, steps=tuple(shuffled))


def training_cluster(shape: Shape, random: Random) -> Cluster:
    """A memory for each device, and maybe one more as the host."""
    count = shape.replicas * shape.lanes
    host = random.choice([None, 0, count])
    num_memories = count + (host == count)
    devices = tuple(
        Device(
            f"d{i}",
            "cuda",
            "",
            i,
            i,
            batch_sizes=_BATCHES,
            memory_bytes_per_second=random.choice([None, 10**9]),
            launch_ns=random.choice([0, 2]),
        )
        for i in range(count)
    )
    sharing = random.choice(["link", "bus"])
    links = tuple(
        Link(
            f"{src}-{dst}",
            src,
            dst,
            random.choice([1, 2, 5]) * 10**9,
            random.randint(0, 2),
            f"{src}-{dst}" if sharing == "link" else "bus",
        )
        for src in range(num_memories)
        for dst in range(num_memories)
        if src != dst
    )
    memories = tuple(Memory(f"m{i}", AMPLE) for i in range(num_memories))
    return Cluster("box", memories, devices, links, host=host)


def training_graph(shape: Shape, random: Random) -> TaskGraph:
    """Layers of lanes, a gradient and an update for each weight, and one value made anew."""
    builder = TaskGraphBuilder("training")
    x = builder.add_input("x", (_ROWS,), "int8")
    builder.add_task(Task("norm", "norm"), [x])
    read = [x, builder.add_tensor("norm", (2,), "int8", shared=True)]
    tied = (("table", random.randint(1, 9)),)
    for layer in range(shape.layers):
        made = []
        for lane in range(shape.lanes):
            name = f"f{layer}.{lane}"
            weight = builder.add_input(f"w{layer}.{lane}", (4,), "int8", shared=True)
            weights = tied if random.random() < 0.5 else ()
            workspace = random.choice([0, 3])
            task = Task(name, "matmul", weight_bytes=1, workspace_bytes=workspace, weights=weights)
            builder.add_task(task, [*read, weight])
            rows = _ROWS // shape.lanes if shape.gathers else _ROWS
            made.append(builder.add_tensor(name, (rows,), "int8"))
        if shape.lanes > 1:
            kind = "all_gather" if shape.gathers else "all_reduce"
            builder.add_task(Task(f"c{layer}", collective_op(kind)), made)
            made = [builder.add_tensor(f"c{layer}", (_ROWS,), "int8")]
        read = made
    adds = shape.micro_batches > 1 or random.random() < 0.5
    for number, kind in enumerate(shape.sums):
        _add_update(
            builder, shape, f"{number // shape.lanes}.{number % shape.lanes}", kind, read, adds
        )
    return builder.finalize(read)


def _add_update(
    builder: TaskGraphBuilder, shape: Shape, name: str, kind: str, read: list[str], adds: bool
) -> None:
    """The gradient of a weight, its sum over replicas, and the weight's update."""
    builder.add_task(Task(f"dw{name}", "matmul_dw", adds=adds), read)
    gradient = builder.add_tensor(f"dw{name}", (4,), "int8", shared=True)
    if shape.replicas > 1:
        builder.add_task(Task(f"sum{name}", collective_op(kind)), [gradient])
        gradient = builder.add_tensor(f"sum{name}", (4,), "int8", shared=True)
    builder.add_task(Task(f"sgd{name}", "sgd"), [f"w{name}", gradient])
    new = builder.add_tensor(f"sgd{name}", (4,), "int8", shared=True)
    if shape.replicas > 1 and kind == "reduce":
        builder.add_task(Task(f"send{name}", collective_op("broadcast")), [new])
        new = builder.add_tensor(f"send{name}", (4,), "int8", shared=True)
    builder.add_update(f"w{name}", new)


def training_steps(shape: Shape, graph: TaskGraph, cluster: Cluster, random: Random) -> list[Step]:
    """The steps in the order of the items, the updates last."""
    task = {each.name: index for index, each in enumerate(graph.tasks)}
    steps: list[Step] = []
    for replica in range(shape.replicas):
        first = replica * shape.micro_batches
        items = tuple(range(first, first + shape.micro_batches))
        groups = [items] if random.random() < 0.3 else [(item,) for item in items]
        for group in groups:
            steps += _forward(shape, graph, cluster, replica, group)
        for group in groups:
            for number in range(len(shape.sums)):
                layer, lane = divmod(number, shape.lanes)
                steps.append(Run(task[f"dw{layer}.{lane}"], shape.device(replica, lane), group))
    everything = tuple(range(shape.items))
    for number, kind in enumerate(shape.sums):
        layer, lane = divmod(number, shape.lanes)
        name = f"{layer}.{lane}"
        devices = [shape.device(replica, lane) for replica in range(shape.replicas)]
        ranks, root = tuple(random.sample(devices, len(devices))), 0
        if shape.replicas > 1:
            root = random.randrange(len(ranks)) if kind == "reduce" else 0
            steps.append(Collective(task[f"sum{name}"], ranks, everything, root))
        owners = [ranks[root]] if kind == "reduce" and shape.replicas > 1 else devices
        steps += [Run(task[f"sgd{name}"], device, everything) for device in owners]
        if kind == "reduce" and shape.replicas > 1:
            steps.append(Collective(task[f"send{name}"], ranks, everything, root))
    return steps


def _forward(
    shape: Shape, graph: TaskGraph, cluster: Cluster, replica: int, items: tuple[int, ...]
) -> list[Step]:
    """The forward steps of some items of a replica, and the copies from and to the host."""
    task = {each.name: index for index, each in enumerate(graph.tasks)}
    devices = tuple(shape.device(replica, lane) for lane in range(shape.lanes))
    steps: list[Step] = []
    for device in devices:
        memory = cluster.devices[device].memory
        if cluster.host not in (None, memory):
            assert cluster.host is not None
            route = cluster.route(cluster.host, memory)
            steps.append(Copy(graph.inputs[0], cluster.host, memory, route, items))
        steps.append(Run(task["norm"], device, items))
    for layer in range(shape.layers):
        steps += [Run(task[f"f{layer}.{lane}"], d, items) for lane, d in enumerate(devices)]
        if shape.lanes > 1:
            steps.append(Collective(task[f"c{layer}"], devices, items))
    homes = [cluster.devices[device].memory for device in devices]
    if cluster.host is not None and cluster.host not in homes:
        route = cluster.route(homes[0], cluster.host)
        steps.append(Copy(graph.outputs[0], homes[0], cluster.host, route, items))
    return steps


def _shuffled(random: Random, graph: TaskGraph, cluster: Cluster, plan: Plan) -> list[Step]:
    """The steps in any order in which each finds what it found before."""
    after: list[set[int]] = []
    writer: dict[tuple[int, int, int], int] = {}
    readers: dict[tuple[int, int, int], set[int]] = {}
    for index in range(len(plan.steps)):
        read, made = needs(graph, cluster, plan, index), puts(graph, cluster, plan, index)
        # An update takes the place of the state.
        made = made | {(graph.state_of.get(key[0], key[0]), *key[1:]) for key in made}
        before = {writer[key] for key in read | made if key in writer}
        before |= {reader for key in made for reader in readers.get(key, ())}
        after.append(before - {index})
        for key in read:
            readers.setdefault(key, set()).add(index)
        for key in made:
            writer[key] = index
            readers[key] = set()
    waiting = list(range(len(plan.steps)))
    found: list[int] = []
    while waiting:
        chosen = random.choice([index for index in waiting if not after[index] - set(found)])
        waiting.remove(chosen)
        found.append(chosen)
    return [plan.steps[index] for index in found]
