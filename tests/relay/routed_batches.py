"""Random routed networks side by side, compiled together, run by random plans, beside numpy.

A plan says for each task a core or the memory apart, in any order that the graph allows; some
branches of whole tensors are predicted, and of some branches the weights are loaded when they are
needed. Requests run at the same time. Outputs are those of numpy, and of all plans to the bit, as
they run the same kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import numpy as np
import tvm
from item_plans import with_second_memory
from numpy_relay import executor_by_numpy
from random_routed import RoutedCase, random_batch
from relay_models import cpu_cluster
from routed_models import costs_by_capacity
from tvm import relay

from heteroplace.errors import ExecutionError
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.executable import write_programs
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Guard, Load, Plan, Run, Step
from heteroplace.model.solution import Solution
from heteroplace.parts.routing.relay.rewrite import routers_of
from heteroplace.relay.expressions import post_order
from heteroplace.relay.router_ops import routing_kind
from heteroplace.relay.tasks.network import Network, cut_network
from heteroplace.run.executor import Executor
from heteroplace.simulate.simulator import simulate
from tests.routed_plans import random_speculated_plan

Array = np.ndarray
Branch = tuple[int, int]
"""(router id, branch)"""
NUM_INPUTS = 4
NUM_PLANS = 3


@dataclass(frozen=True)
class Expected:
    """What numpy makes of some inputs."""

    inputs: dict[str, Array]
    outputs: list[Array]
    exact: Callable[[], list[Array]]
    """The outputs in float64, of the same decisions unless these hang on the last bits."""
    is_over: bool
    """A router has more cells for a branch than it may have: the run fails."""


def expected_of(case: RoutedCase, numbers: Sequence[int]) -> list[Expected]:
    """What numpy makes of the inputs of those numbers."""
    body = case.mod["main"].body
    routers = [node for node in post_order(body) if routing_kind(node) == "router"]
    outputs = list(body.fields) if isinstance(body, relay.Tuple) else [body]
    loads = [relay.TupleGetItem(router, 1) for router in routers]
    both = relay.Function(case.mod["main"].params, relay.Tuple([*outputs, *loads]))
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(both))
    run, wide = executor_by_numpy(mod), executor_by_numpy(mod, is_wide=True)

    def exact(inputs: dict[str, Array]) -> list[Array]:
        with np.errstate(all="ignore"):
            return wide(inputs)[: len(outputs)]

    options = [router.options for router in routers_of(case.mod)]
    found = []
    for number in numbers:
        inputs = case.inputs(number)
        with np.errstate(all="ignore"):  # rows that nothing may read are no numbers
            made = run(inputs)
        is_over = any(
            of.overflow == "error" and load > sizes[-1]
            for of, counts in zip(options, made[len(outputs) :], strict=True)
            for load, sizes in zip(counts, of.capacities, strict=True)
        )
        found.append(Expected(inputs, made[: len(outputs)], partial(exact, inputs), is_over))
    return found


def check_near(
    found: Sequence[Array],
    expected: Sequence[Array],
    exact: Callable[[], list[Array]] | None = None,
) -> None:
    """Outputs within 1e-5 of the largest element; integers are equal.

    Where a small output is the difference of large values, numpy's float32 itself may be further
    from what is right: there float64 decides.
    """
    for at, (got, want) in enumerate(zip(found, expected, strict=True)):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if got.dtype.kind != "f":
            assert got.tobytes() == want.tobytes(), f"output {at}: {got}, expected {want}"
            continue
        scale = max(1e-30, float(np.abs(want).max(initial=0)))
        worst = _distance(got, want)
        if worst > 1e-5 * scale and exact is not None:
            worst = _distance(got, exact()[at])
        assert worst <= 1e-5 * scale, f"output {at}: {worst} of {scale}"


def _distance(one: Array, other: Array) -> float:
    return float(np.abs(one.astype("float64") - other).max(initial=0))


def random_solution(random: Random, network: Network, cluster: Cluster) -> Solution:
    """A random plan of a network."""
    graph = network.graph
    plan = random_speculated_plan(random, graph, cluster)
    plan = _with_loads(random, graph, cluster, plan)
    costs = costs_by_capacity(graph, cluster)
    check_plan(graph, cluster, costs, plan)
    makespan = simulate(graph, cluster, costs, plan).makespan_ns
    return Solution(graph, cluster, costs, plan, makespan, 0)


def _with_loads(random: Random, graph: TaskGraph, cluster: Cluster, plan: Plan) -> Plan:
    """The plan in which some branches' weights are brought right before they are needed."""
    host = cluster.host
    assert host is not None
    loaded: set[tuple[Branch, int]] = set()
    steps: list[Step] = []
    places: dict[tuple[Branch, int], set[int]] = {}
    """By branch and memory the tasks that run there."""
    for step in plan.steps:
        if isinstance(step, Run) and graph.branches[step.task]:
            place = graph.branches[step.task][0], cluster.devices[step.device].memory
            places.setdefault(place, set()).add(step.task)
    chosen = {place for place in places if place[1] != host and random.random() < 0.4}
    for step in plan.steps:
        if isinstance(step, Run) and graph.branches[step.task]:
            place = graph.branches[step.task][0], cluster.devices[step.device].memory
            tasks = sorted(places[place])
            has_weights = any(graph.tasks[task].weight_bytes for task in tasks)
            if place in chosen and place not in loaded and has_weights:
                assert step.guard is not None
                is_predicted = step.guard.when != "active"
                when = None if is_predicted or random.random() < 0.3 else step.guard
                route = cluster.route(host, place[1])
                steps.append(Load(tuple(tasks), host, place[1], route, when))
                loaded.add(place)
        steps.append(step)
    return replace(plan, steps=tuple(steps))


def check_batch(seed: str, num_networks: int, max_parts: int = 2) -> None:
    """Run networks side by side by some plans."""
    random = Random(seed)
    case = random_batch(random, num_networks, max_parts=max_parts)
    expected = expected_of(case, range(NUM_INPUTS))
    cluster = with_second_memory(cpu_cluster())
    network = cut_network(case.mod)
    kernels = CompiledNetwork.of(network).kernels(cluster, [0] * len(network.graph.tasks))
    first: list[list[bytes] | None] | None = None
    for number in range(NUM_PLANS):
        plan_random = Random(f"{seed} {number}")
        solution = random_solution(plan_random, network, cluster)
        (executable,) = write_programs(kernels, [solution])
        found = run_at_once(plan_random, Executor(executable, max_in_flight=3), expected, network)
        first = found if first is None else first
        assert found == first, f"plan {number} of {seed} has other outputs than plan 0"


def run_at_once(
    random: Random, executor: Executor, expected: Sequence[Expected], network: Network
) -> list[list[bytes] | None]:
    """The outputs of runs at the same time, checked; None: the run fails, as it has to."""
    predictions = {
        router.name: [b for b in range(router.num_branches) if random.random() < 0.5]
        for router in network.graph.routers
        if random.random() < 0.7
    }

    def run(one: Expected) -> list[bytes] | None:
        if random.random() < 0.5:
            executor.predict(predictions)
        try:
            found = executor.run(one.inputs)
        except ExecutionError as err:
            if not one.is_over:
                raise
            assert "overflow is an error" in str(err)
            return None
        assert not one.is_over, "a load above the largest capacity was let through"
        check_near(found, one.outputs, one.exact)
        return [array.tobytes() for array in found]

    with ThreadPoolExecutor(random.randint(1, 3)) as threads:
        return list(threads.map(run, expected))


def guards_of(plan: Plan) -> set[str]:
    """Of what kind the guards of a plan are."""
    found = {step.guard.when for step in plan.steps if isinstance(step.guard, Guard)}
    return found | {"load" for step in plan.steps if isinstance(step, Load)}
