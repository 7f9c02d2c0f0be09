"""Measure what collectives take between devices of this machine, by the executor that runs plans.

DistIR (arXiv 2111.05426, section 4) fits all-reduces to measured runs, for each number of members.
Here a program has chains of collectives of several sizes. Between two of them each member computes
what it brings to the next, so that this lies where it does in a network: in the caches of its core.
A collective lasts from the end of the last of these computations to the end of the last of its own
kernels, as the simulator counts it; what it moves is moved within that time. That what others have
just read must leave their caches before it can be written again, lengthens the kernels behind it:
costs have it that were measured in a plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import tvm
from tvm import relay

from heteroplace.costs.calibration import fit_collectives
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.measure.plan_program import PlanProgram, load_programs
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import CollectiveCosts, CollectiveKind, collective_kind
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Copy, Plan, Run, Step
from heteroplace.model.step_values import collective_bytes, makes
from heteroplace.relay import collective_ops as ops
from heteroplace.relay.tasks.extract import extract
from heteroplace.relay.tasks.network import network_of
from heteroplace.stats import median

COLLECTIVE_BYTES = tuple(4**power for power in range(6, 12))
"""Of the whole tensor: 4 KiB to 4 MiB."""
_WIDTH = 128
_DTYPE, _ELEMENT_BYTES = "float32", 4
_CHAIN = 5
"""Collectives of one size in a row; the first does not count."""
_NUM_RUNS, _NUM_WARM_RUNS = 31, 5

_Link = Callable[[relay.Expr, int, int], relay.Expr]
"""(a whole value, its rows, number of members) -> a whole value again, through collectives."""


def measure_collectives(
    cluster: Cluster,
    devices: Sequence[int],
    kinds: Collection[str],
    sizes: Sequence[int] = COLLECTIVE_BYTES,
) -> CollectiveCosts:
    """Fit a line in the bytes to each kind of collective over some devices.

    Parameters
    ----------
    cluster
        All its devices are in this machine, and it has a host memory.
    devices
        The members in rank order, at least 2, which can run at once.
    kinds
        Names of kinds; those that only copy (`MEASURED_KINDS` has the others) are left out, as the
        links say what they take.
    sizes
        In bytes, at least two; they are rounded up to rows for each member.

    Raises
    ------
    LoweringError, ExecutionError, InfeasibleError
        The programs cannot be compiled or run, or need more memory than there is.
    """
    timed = sorted(set(kinds) & MEASURED_KINDS.keys())
    samples: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for kind in timed:
        for fit in _run(cluster, devices, MEASURED_KINDS[kind], sizes):
            if fit.kind == kind:
                samples[kind, len(devices)].append((fit.bytes, fit.ns))
    return fit_collectives(samples)


@dataclass(frozen=True)
class _Sample:
    kind: str
    bytes: int
    ns: int


def _run(
    cluster: Cluster, devices: Sequence[int], link: _Link, sizes: Sequence[int]
) -> list[_Sample]:
    """Compile chains of all sizes as one program, run it, and return the times of each size."""
    count = len(devices)
    with tvm.transform.PassContext(opt_level=3):
        network = network_of(extract(_chains(link, count, sizes), "collectives"))
        plan = _plan(network.graph, cluster, devices)
        compiled = CompiledNetwork.of(network).kernels_of(cluster, plan)
    (program,) = load_programs(compiled, network.graph, cluster, [plan])
    times = _times(program, network.graph)
    by_size: dict[tuple[str, int], list[float]] = defaultdict(list)
    for index, time_ns in times.items():
        step = plan.steps[index]
        assert isinstance(step, Collective)
        num_bytes = collective_bytes(network.graph, step)
        by_size[_kind(network.graph, step.task).name, num_bytes].append(time_ns)
    return [
        _Sample(kind, num_bytes, max(1, round(median(values[1:]))))
        for (kind, num_bytes), values in by_size.items()
    ]


def _chains(link: _Link, count: int, sizes: Sequence[int]) -> tvm.IRModule:
    inputs, outputs = [], []
    for size in sizes:
        rows = max(1, -(-size // (_WIDTH * _ELEMENT_BYTES * count))) * count
        whole = relay.var(f"x{size}", shape=(rows, _WIDTH), dtype=_DTYPE)
        inputs.append(whole)
        for _ in range(_CHAIN):
            whole = link(whole, rows, count)
        outputs.append(whole)
    function = relay.Function(inputs, relay.Tuple(outputs))
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))


def _scaled(value: relay.Expr, member: int, count: int) -> relay.Expr:
    """What a member computes; the sum over all members is no larger than the value."""
    return relay.multiply(value, relay.const((member + 1.0) / count**2, _DTYPE))


def _whole_of_each(whole: relay.Expr, count: int) -> list[relay.Expr]:
    return [_scaled(whole, member, count) for member in range(count)]


def _parts_of_each(whole: relay.Expr, rows: int, count: int) -> list[relay.Expr]:
    each = rows // count
    return [
        _scaled(
            relay.strided_slice(whole, [member * each, 0], [(member + 1) * each, _WIDTH]),
            member,
            count,
        )
        for member in range(count)
    ]


def _all_reduce(whole: relay.Expr, rows: int, count: int) -> relay.Expr:
    return ops.all_reduce(_whole_of_each(whole, count))


def _all_gather(whole: relay.Expr, rows: int, count: int) -> relay.Expr:
    return ops.all_gather(_parts_of_each(whole, rows, count), 0)


def _reduce_scatter(whole: relay.Expr, rows: int, count: int) -> relay.Expr:
    parts = ops.reduce_scatter(_whole_of_each(whole, count), 0, [rows // count] * count)
    scaled = [_scaled(relay.TupleGetItem(parts, member), member, count) for member in range(count)]
    return ops.all_gather(scaled, 0)


def _reduce(whole: relay.Expr, rows: int, count: int) -> relay.Expr:
    return ops.broadcast(ops.reduce(_whole_of_each(whole, count)))


def _gather(whole: relay.Expr, rows: int, count: int) -> relay.Expr:
    return ops.broadcast(ops.gather(_parts_of_each(whole, rows, count), 0))


MEASURED_KINDS: dict[str, _Link] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "reduce": _reduce,
    "gather": _gather,
}
"""By name, a link of the chain that measures the kind."""


def _plan(graph: TaskGraph, cluster: Cluster, devices: Sequence[int]) -> Plan:
    """Each task on the device of the member that brings what it makes; all in their order."""
    assert cluster.host is not None
    memory_of = [device.memory for device in cluster.devices]
    homes: dict[int, list[int]] = {tensor: [cluster.host] for tensor in graph.inputs}
    steps: list[Step] = []

    def bring(tensor: int, memory: int) -> None:
        if memory not in homes[tensor]:
            home = homes[tensor][0]
            steps.append(Copy(tensor, home, memory, cluster.route(home, memory)))
            homes[tensor].append(memory)

    for task, description in enumerate(graph.tasks):
        step: Run | Collective
        if collective_kind(description.op) is not None:
            step = Collective(task, tuple(devices))
        else:
            step = Run(task, devices[_member(graph, task)])
            for tensor in graph.task_inputs[task]:
                bring(tensor, memory_of[step.device])
        steps.append(step)
        for tensor, memory in makes(graph, cluster, step):
            homes.setdefault(tensor, []).append(memory)
    for tensor in dict.fromkeys(graph.outputs):
        bring(tensor, cluster.host)
    return Plan(graph.digest(), cluster.digest(), tuple(steps), "collectives in a row")


def _member(graph: TaskGraph, task: int) -> int:
    """The member whose part of a collective a task makes."""
    (tensor,) = graph.task_outputs[task]
    (reader,) = graph.tensors[tensor].consumers
    return graph.task_inputs[reader].index(tensor)


def _kind(graph: TaskGraph, task: int) -> CollectiveKind:
    kind = collective_kind(graph.tasks[task].op)
    assert kind is not None
    return kind


def _times(program: PlanProgram, graph: TaskGraph) -> dict[int, float]:
    """Return for each collective step with kernels its median ns over some runs."""
    steps = program.plan.steps
    run_of = {
        step.task: index for index, step in enumerate(steps) if isinstance(step, Run | Collective)
    }
    makers = {
        index: [run_of[task] for task in graph.predecessors[step.task]]
        for index, step in enumerate(steps)
        if isinstance(step, Collective)
    }
    samples: dict[int, list[int]] = defaultdict(list)
    for run in range(_NUM_WARM_RUNS + _NUM_RUNS):
        _, finishes = program.executor.run_timed()
        if run < _NUM_WARM_RUNS:
            continue
        end: dict[int, int] = {}
        for at, finish in zip(program.executor.instructions, finishes.tolist(), strict=True):
            if at.kernel is not None:
                end[at.step] = max(finish, end.get(at.step, finish))
        for index, before in makers.items():
            if index in end and all(other in end for other in before):
                samples[index].append(end[index] - max(end[other] for other in before))
    return {index: median(values) for index, values in samples.items()}
