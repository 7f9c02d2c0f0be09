"""Random routed networks, plans of them with guards and loads, and decisions of their routers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Guard, Load, Plan, Run, Step
from heteroplace.model.routed.decision import Decision, decision_of
from heteroplace.model.routed.routers import Router
from heteroplace.parts.routing.solve.expected_view import guarded
from heteroplace.parts.routing.solve.speculated import behind_routers, speculated, speculated_view
from tests.corpus import corpus
from tests.placed_steps import placed_steps
from tests.strategies import AMPLE, Instance, in_any_mode

BATCHES = (1, 2, 3, 4, 5, 6)
"""All capacities that a random router may have."""


@dataclass(frozen=True)
class RoutedCase:
    """A routed network, a valid plan of it, and what its routers may decide."""

    instance: Instance
    plan: Plan
    decisions: tuple[Decision, ...]


def layer_graph(
    *, num_cells: int = 6, capacities: tuple[tuple[int, ...], ...] = ((1, 2, 4, 6),) * 3
) -> TaskGraph:
    """A layer of branches of two tasks each, between a task before and one behind it.

    Its tensors are x, scores, seats, loads, x.B and h.B and y.B of branch B, and y. Rows of cells
    have 8 bytes; with one cell nothing is in a buffer.
    """
    builder = TaskGraphBuilder("layer")
    _add_layer(builder, _Layer("r", num_cells, 2, capacities), builder.add_input("x", (8,), "int8"))
    return builder.finalize(["r.y"])


@dataclass(frozen=True)
class _Layer:
    name: str
    num_cells: int
    top_k: int
    capacities: tuple[tuple[int, ...], ...]
    overflow: str = "rounds"
    parent: tuple[str, int] | None = None
    depth: int = 2
    """Tasks of a branch, one behind the other."""
    nested: dict[int, _Layer] = field(default_factory=dict)
    """Layers behind the tasks of a branch."""
    weight_bytes: int = 5
    has_seats: bool = False
    """Tasks of branches read where the cells are, too."""


def _add_layer(builder: TaskGraphBuilder, layer: _Layer, x: str) -> str:
    """Add router, dispatch, branches and their join; return the name of what they make."""
    name, cells = layer.name, layer.num_cells
    around = layer.parent
    outer = [] if around is None else [f"{around[0]}.loads"]
    is_routed = cells > 1
    builder.add_task(Task(f"{name}.route", "route", branch=around), [x, *outer])
    seats = builder.add_tensor(f"{name}.route", (cells,), "int32", name=f"{name}.seats")
    loads = builder.add_tensor(
        f"{name}.route", (len(layer.capacities),), "int32", name=f"{name}.loads"
    )
    sent = [x] * len(layer.capacities)
    if is_routed:
        for place in ("in", "mid", "out"):
            builder.add_buffer(f"{name}.{place}", 8 * cells * layer.top_k + 8)
        builder.add_task(Task(f"{name}.send", "dispatch", branch=around), [x, seats, *outer])
        sent = [
            builder.add_tensor(
                *(f"{name}.send", (cells, 8), "int8", None, f"{name}.x.{branch}"),
                buffer=f"{name}.in",
            )
            for branch in range(len(layer.capacities))
        ]
    made = []
    for branch in range(len(layer.capacities)):
        value = sent[branch]
        for index in range(layer.depth):
            is_last = index == layer.depth - 1
            task = f"{name}.{branch}.{index}"
            place = f"{name}.{'out' if is_last else 'mid'}" if is_routed else None
            builder.add_task(
                Task(
                    *(task, "dense", (), 16),
                    weight_bytes=layer.weight_bytes + branch,
                    workspace_bytes=index,
                    branch=(name, branch),
                ),
                [value, loads, seats] if layer.has_seats else [value, loads],
            )
            value = builder.add_tensor(task, (cells, 8), "int8", buffer=place)
        if branch in layer.nested:
            value = _add_layer(builder, layer.nested[branch], value)
        made.append(value)
    router = Router(
        *(name, -1, -1, cells, layer.top_k, layer.capacities, layer.overflow), parent=around
    )
    builder.add_router(router, loads)
    builder.add_task(Task(f"{name}.join", "combine", branch=around), [*made, seats, loads, *outer])
    return builder.add_tensor(f"{name}.join", (cells, 8), "int8", name=f"{name}.y")


@corpus
def routed_plans(random: Random, has_seats: bool = False) -> RoutedCase:
    """A routed network and a valid plan of it; see `random_routed_plan`."""
    return random_routed_plan(random, has_seats)


def random_routed_plan(random: Random, has_seats: bool = False) -> RoutedCase:
    """One or two layers, maybe nested; rows or whole tensors; predictions and loads.

    `has_seats`: tasks of some branches read where the cells are.
    """
    builder = TaskGraphBuilder("routed")
    value = builder.add_input("x", (8,), "int8")
    for index in range(random.randint(1, 2)):
        builder.add_task(Task(f"before.{index}", "relu", weight_bytes=3), [value])
        before = builder.add_tensor(f"before.{index}", (8,), "int8")
        value = _add_layer(builder, _random_layer(random, f"r{index}", 1, has_seats), before)
    graph = builder.finalize([value])
    cluster = in_any_mode(random, _random_cluster(random))
    costs = build_table(
        graph, cluster, lambda *_: Cost.given(random.randint(0, 12)), batches=BATCHES
    )
    placed = ((task, random.randrange(len(cluster.devices))) for task in range(len(graph.tasks)))
    steps = list(placed_steps(graph, cluster, placed))
    plan = Plan(graph.digest(), cluster.digest(), tuple(steps), "random")
    plan = guarded(graph, cluster, plan)
    steps = _with_predictions(random, graph, list(plan.steps))
    steps = _with_loads(random, graph, cluster, steps)
    if random.random() < 0.7:
        steps = _with_places(random, graph, cluster, steps)
    decisions = tuple(random_decision(random, graph) for _ in range(3))
    instance = Instance(graph, cluster, costs)
    return RoutedCase(instance, replace(plan, steps=tuple(steps)), decisions)


def random_speculated_plan(random: Random, graph: TaskGraph, cluster: Cluster) -> Plan:
    """A plan of a random order on random devices, in which some branches of whole tensors are
    predicted, as `solve_routed` makes it of what a solver has found."""
    predicted = [branch for branch in predictable(graph) if random.random() < 0.5]
    view = speculated_view(graph, graph, predicted)
    steps = placed_steps(view, cluster, _at_random(random, view, cluster))
    plan = Plan(graph.digest(), cluster.digest(), steps, "at random")
    plan = behind_routers(view, graph, cluster, plan, predicted)
    return speculated(graph, cluster, guarded(graph, cluster, plan), predicted)


def predictable(graph: TaskGraph) -> list[tuple[int, int]]:
    """Branches of whole tensors that have no router in them."""
    parents = {router.parent for router in graph.routers}
    return [
        (router_id, branch)
        for router_id, router in enumerate(graph.routers)
        for branch in range(router.num_branches)
        if router.num_cells == 1 and (router.name, branch) not in parents
    ]


def _at_random(random: Random, graph: TaskGraph, cluster: Cluster) -> Iterator[tuple[int, int]]:
    """Tasks in a random order that the graph allows, some share of them on the last device."""
    made = set(graph.inputs)
    pending = list(range(len(graph.tasks)))
    share = random.choice((0.0, 0.3, 0.7))
    last = len(cluster.devices) - 1
    while pending:
        ready = [task for task in pending if made.issuperset(graph.task_inputs[task])]
        task = random.choice(ready[:3])
        pending.remove(task)
        yield task, last if not last or random.random() < share else random.randrange(last)
        made.update(graph.task_outputs[task])


def _random_layer(
    random: Random,
    name: str,
    nesting: int,
    has_seats: bool,
    parent: tuple[str, int] | None = None,
    cells: int = 0,
) -> _Layer:
    num_branches = random.randint(1, 3)
    num_cells = cells or random.choice([1, 1, 2, 4, 6])
    capacities = tuple(
        (1,) if num_cells == 1 else tuple(sorted(random.sample(BATCHES, random.randint(1, 3))))
        for _ in range(num_branches)
    )
    nested = {}
    if nesting and random.random() < 0.4:
        branch = random.randrange(num_branches)
        inner = _random_layer(
            random, f"{name}.n", nesting - 1, has_seats, (name, branch), num_cells
        )
        nested[branch] = inner
    top_k = random.randint(1, num_branches)
    overflow = random.choice(["rounds", "rounds", "drop"])
    depth = random.randint(1, 2)
    layer = _Layer(name, num_cells, top_k, capacities, overflow, parent, depth, nested)
    return replace(layer, has_seats=has_seats and random.random() < 0.3)


def _random_cluster(random: Random) -> Cluster:
    """One to three memories, all joined, the first one the host or none."""
    count = random.randint(1, 3)
    devices = [Device("cpu.0", "cpu", "", 0, 0, (0,)), Device("cpu.1", "cpu", "", 0, 0, (1,))]
    devices += [Device(f"gpu{i}", "cuda", "", i, i) for i in range(1, count)]
    links = tuple(
        Link(f"{a}-{b}", a, b, random.choice([1, 2]) * 10**9, random.randint(0, 3), f"{a}-{b}")
        for a in range(count)
        for b in range(count)
        if a != b
    )
    memories = tuple(Memory(f"m{i}", AMPLE) for i in range(count))
    return Cluster("box", memories, tuple(devices), links, host=0)


def _with_predictions(random: Random, graph: TaskGraph, steps: list[Step]) -> list[Step]:
    """Some runs of whole tensors as two, one for each case; what is first reads no loads."""
    found: list[Step] = []
    for step in steps:
        guard = None if not isinstance(step, Run) else step.guard
        if guard is None or graph.routers[guard.router].num_cells > 1 or random.random() < 0.5:
            found.append(step)
            continue
        found += [replace(step, guard=replace(guard, when=w)) for w in ("predicted", "missed")]
    return found


def _with_loads(
    random: Random, graph: TaskGraph, cluster: Cluster, steps: list[Step]
) -> list[Step]:
    """Some weights are loaded, right before the first run of their task or where its loads are."""
    if len(cluster.memories) == 1:
        return steps
    found: list[Step] = []
    for step in steps:
        is_first = isinstance(step, Run) and (step.guard is None or step.guard.when != "missed")
        if isinstance(step, Run) and is_first and random.random() < 0.5:
            dst = cluster.devices[step.device].memory
            src = random.choice([m for m in range(len(cluster.memories)) if m != dst])
            guards: list[Guard | None] = [None]
            if step.guard is not None:
                active = replace(step.guard, when="active")
                both = [replace(active, when=when) for when in ("predicted", "missed")]
                # Before a predicted run the router may not have decided.
                choices = [[None], both] if step.guard.when == "predicted" else [[active], both]
                guards = random.choice([*choices, [None]])
            route = cluster.route(src, dst)
            loads = [Load((step.task,), src, dst, route, guard) for guard in guards]
            found += loads
        found.append(step)
    return found


def _with_places(
    random: Random, graph: TaskGraph, cluster: Cluster, steps: list[Step]
) -> list[Step]:
    """Most weights that are loaded lie in the room of their memory, each where nothing lies that a
    later run reads, and some where others have lain."""
    last: dict[tuple[int, int], int] = {}
    for index, step in enumerate(steps):
        if isinstance(step, Run):
            last[step.task, cluster.devices[step.device].memory] = index
    places: dict[tuple[int, int], tuple[int, int] | None] = {}
    found: list[Step] = []
    for index, step in enumerate(steps):
        if not isinstance(step, Load):
            found.append(step)
            continue
        (task,) = step.tasks
        key = task, step.dst
        if key not in places:
            size = graph.tasks[task].weight_bytes + random.choice((0, 0, 3))
            read = [
                place
                for other, place in places.items()
                if place is not None and other[1] == step.dst and last[other] > index
            ]
            begins = [
                begin
                for begin in range(max(map(sum, read), default=0) + 3)
                if all(begin + size <= first or first + taken <= begin for first, taken in read)
            ]
            begin = random.choice((begins[0], random.choice(begins)))
            places[key] = None if random.random() < 0.1 else (begin, size)
        found.append(replace(step, place=places[key]))
    return found


def random_decision(random: Random, graph: TaskGraph) -> Decision:
    """Loads that the routers of a graph can decide, and any predictions."""
    loads: dict[str, list[int]] = {}
    predicted = {}
    for router in graph.routers:
        count = router.num_branches
        loads[router.name] = [0] * count
        parent = router.parent
        if parent is None or loads[parent[0]][parent[1]]:
            for _ in range(router.num_cells):
                for branch in random.sample(range(count), random.randint(0, router.top_k)):
                    loads[router.name][branch] += 1
        predicted[router.name] = random.sample(range(count), random.randint(0, count))
    return decision_of(graph, loads, predicted)
