"""Routed networks, plans of them, and what they are compiled to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm
from relay_models import cpu_cluster, module, var
from tvm import relay

from heteroplace import routing
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.executable import Executable, write_programs
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, batches_of, table_from_rows
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Guard, Load, Plan, Run, Step
from heteroplace.model.solution import Solution
from heteroplace.parts.routing.solve.expected_view import guarded
from heteroplace.relay.tasks.network import Network, cut_network
from heteroplace.simulate.simulator import simulate
from tests.placed_steps import placed_steps

Branch = Callable[[relay.Expr], relay.Expr]


@dataclass
class Weights:
    """Constants, seeded."""

    seed: int = 0

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def __call__(self, *shape: int) -> relay.Constant:
        values = self._random.standard_normal(shape) / np.sqrt(shape[-1])
        return relay.const(values.astype("float32"))


def expert(weights: Weights, width: int, hidden: int) -> Branch:
    """Two dense layers, a bias and a relu."""
    first, bias, second = weights(hidden, width), weights(hidden), weights(width, hidden)

    def branch(rows: relay.Expr) -> relay.Expr:
        inner = relay.nn.relu(relay.add(relay.nn.dense(rows, first), bias))
        return relay.nn.dense(inner, second)

    return branch


@dataclass(frozen=True)
class Shape:
    """Of a Switch layer."""

    cells: int = 16
    width: int = 16
    hidden: int = 32
    branches: int = 4
    top_k: int = 1
    capacities: tuple[int, ...] = (1, 4, 16)
    overflow: str = "rounds"
    gate: str | None = "combine"
    has_residual: bool = False


def switch_layer(shape: Shape = Shape(), seed: int = 0) -> tvm.IRModule:
    """Scores of a dense layer, experts of two, and what is around them in a transformer."""
    weights = Weights(seed)
    x = var("x", (shape.cells, shape.width))
    h = relay.nn.relu(relay.nn.dense(x, weights(shape.width, shape.width)))
    scores = relay.nn.softmax(relay.nn.dense(h, weights(shape.branches, shape.width)))
    experts = [expert(weights, shape.width, shape.hidden) for _ in range(shape.branches)]
    y = routing.route(
        routing.annotate_cell(h, dims=(0,), shape=(1, shape.width)),
        routing.top_k(scores, shape.top_k),
        experts,
        gate=shape.gate,
        residual=h if shape.has_residual else None,
        capacities=shape.capacities,
        overflow=shape.overflow,
        name="switch",
    )
    return module([x], relay.add(relay.nn.relu(y), h))


def costs_by_capacity(graph: TaskGraph, cluster: Cluster) -> CostTable:
    """A microsecond for each task, and one for each row of a branch."""
    sizes = batches_of(cluster, 1, graph)

    def rows(size: int) -> tuple[tuple[Cost, ...], ...]:
        return tuple(
            tuple(Cost.given(1000 * (size if task.branch else 1)) for _ in cluster.devices)
            for task in graph.tasks
        )

    return table_from_rows(graph, cluster, rows(1), {size: rows(size) for size in sizes[1:]})


def routed_solution(network: Network, cluster: Cluster, devices: Sequence[int]) -> Solution:
    """The guarded plan that runs task i on devices[i], in topological order."""
    graph = network.graph
    steps = placed_steps(graph, cluster, enumerate(devices))
    plan = Plan(graph.digest(), cluster.digest(), steps, "by hand")
    plan, costs = guarded(graph, cluster, plan), costs_by_capacity(graph, cluster)
    check_plan(graph, cluster, costs, plan)
    makespan = simulate(graph, cluster, costs, plan).makespan_ns
    return Solution(graph, cluster, costs, plan, makespan, 0)


def routed_executable(
    mod: tvm.IRModule, cluster: Cluster | None = None, devices: Sequence[int] | None = None
) -> Executable:
    """The network on some devices; by default all on the first core."""
    network = cut_network(mod)
    cluster = cluster or cpu_cluster()
    placement = [0] * len(network.graph.tasks) if devices is None else list(devices)
    solution = routed_solution(network, cluster, placement)
    kernels = CompiledNetwork.of(network).kernels(cluster, placement)
    return write_programs(kernels, [solution])[0]


def whole_branches() -> tvm.IRModule:
    """A whole tensor, by its sum to one of two branches, or to both."""
    weights, x = Weights(5), var("x", (1, 8))
    total = relay.sum(x, axis=1)
    low = relay.less(total, relay.const(8.0))
    high = relay.greater(total, relay.const(0.0))
    mask = relay.stack([relay.cast(low, "int32"), relay.cast(high, "int32")], axis=1)
    y = routing.route(
        routing.annotate_cell(x, dims=(0,), shape=(1, 8)),
        routing.from_mask(mask, top_k=2),
        [expert(weights, 8, 16), expert(weights, 8, 24)],
        name="choice",
    )
    return module([x], relay.nn.relu(y))


def loaded_executable(
    resident: Executable, network: Network, branches: Sequence[int], when: Sequence[str | None]
) -> Executable:
    """The same with the weights of some branches in the host's memory, loaded before they run."""
    solution = resident.solution
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    steps: list[Step] = []
    done: set[int] = set()
    loads = graph.routers[0].loads
    assert cluster.host is not None
    for step in plan.steps:
        branch = None if not isinstance(step, Run) else graph.tasks[step.task].branch
        if isinstance(step, Run) and branch is not None and branch[1] in branches:
            memory = cluster.devices[step.device].memory
            route = cluster.route(cluster.host, memory)
            tasks = tuple(at for at, task in enumerate(graph.tasks) if task.branch == branch)
            for each in when if branch[1] not in done else ():
                guard = None if each is None else Guard(0, branch[1], each)
                steps.append(Load(tasks, cluster.host, memory, route, guard))
            done.add(branch[1])
        steps.append(step)
    assert any(isinstance(step, Copy) and step.tensor == loads for step in steps)
    made = replace(plan, steps=tuple(steps))
    check_plan(graph, cluster, solution.costs, made)
    placement = plan.placement(len(graph.tasks))
    kernels = CompiledNetwork.of(network).kernels(cluster, placement)
    return write_programs(kernels, [replace(solution, plan=made)])[0]
