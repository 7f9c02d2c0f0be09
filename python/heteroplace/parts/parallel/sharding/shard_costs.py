"""Sharded networks -> what their tasks cost: measured for one, fitted for a whole grid.

Kernels of a few sizes are measured, and each op of each device gets the line that fits its kernels
best (`heteroplace.costs.prediction.op_regression`): with it a grid of degrees is ranked. The
degrees that are run are costed by their own kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from heteroplace.costs.prediction.op_costs import OpCosts, graph_work, plain_op
from heteroplace.costs.prediction.op_regression import MIN_SIZES, OpRegression, fit_op_regression
from heteroplace.costs.roofline import Speeds
from heteroplace.costs.work import TaskWork, main_dtype, op_types
from heteroplace.errors import MissingCostError, ShardingError
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.measure.cost_models.cost_model import CostOptions
from heteroplace.measure.measure_options import ProfileOptions
from heteroplace.measure.profile import profile_network, with_workspaces
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_kind
from heteroplace.model.cost import Cost
from heteroplace.model.graph import TaskGraph
from heteroplace.parts.parallel.shard.sharded_graphs import ShardedNetwork
from heteroplace.parts.parallel.sharding.shard_options import ShardOptions
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph
from heteroplace.relay.tasks.network import Network
from heteroplace.run.missing_devices import missing_devices


@dataclass(frozen=True)
class MeasuredNetwork:
    """A network whose kernels were run on all devices of a cluster."""

    sharded: ShardedGraph
    """Its tasks say the scratch memory of their kernels."""
    costs: Mapping[str, tuple[Cost, ...]]
    """By the name of a task, for each device."""


def check_measurable(
    cluster: Cluster,
    names: Sequence[str],
    what: str = "costs cannot be measured",
    advice: str = "costs='estimate' (--costs estimate)",
) -> None:
    """Raise MissingCostError unless some devices of a cluster are in this machine.

    Parameters
    ----------
    names
        The devices.
    what, advice
        What cannot be done, and what to say instead, for the message.
    """
    absent = missing_devices(cluster, names)
    if absent:
        raise MissingCostError(
            f"{what} on devices that are not in this machine: {'; '.join(absent)}. Say {advice}"
        )


def measure_network(
    network: ShardedNetwork, compiled: CompiledNetwork, cluster: Cluster, options: ShardOptions
) -> MeasuredNetwork:
    """Run the kernels of all lanes on each device of `compiled`, and note their scratch memory.

    Collectives are left out: what they take is said by links, and by their own measurements.

    Parameters
    ----------
    compiled
        What `compiled_alone` makes of the network.

    Raises
    ------
    MissingCostError, LoweringError, ExecutionError, CostStoreError
        See `profile_network`.
    """
    with CostOptions(options.store).open_store() as store:
        chosen = ProfileOptions(store=store, progress=options.progress)
        rows = profile_network(compiled, cluster, chosen).costs.rows
    sharded = with_scratch_of(network.sharded, compiled)
    pairs = zip(sharded.graph.tasks, rows, strict=True)
    return MeasuredNetwork(sharded, {task.name: row for task, row in pairs})


def compiled_alone(
    network: ShardedNetwork, cluster: Cluster, names: Sequence[str] | None = None
) -> CompiledNetwork:
    """Return the tasks of a network as kernels like any other, with the scratch memory of each.

    Parameters
    ----------
    names
        The devices that they may run on; None: all of the cluster.

    Raises
    ------
    LoweringError
        An op cannot be compiled for some target.
    """
    assert network.network is not None  # weights are bound
    devices = None if names is None else tuple(names)
    alone = Network(_for_one_device(network.sharded.graph, devices), network.network.mod)
    return with_workspaces(CompiledNetwork.of(alone), cluster, with_inner_values=True)


def with_scratch_of(sharded: ShardedGraph, compiled: CompiledNetwork) -> ShardedGraph:
    """Return a sharded graph whose tasks say the scratch memory that `compiled_alone` found."""
    tasks = tuple(
        replace(task, workspace_bytes=alone.workspace_bytes)
        for task, alone in zip(sharded.graph.tasks, compiled.graph.tasks, strict=True)
    )
    return replace(sharded, graph=replace(sharded.graph, tasks=tasks))


def _for_one_device(graph: TaskGraph, devices: tuple[str, ...] | None) -> TaskGraph:
    """The same tasks as kernels like any other: nothing is shared, exchanged or updated."""
    tasks = tuple(
        replace(task, op=task.op.rpartition(".")[2], weights=(), devices=devices)
        if collective_kind(task.op) is not None
        else replace(task, adds=False, weights=(), devices=devices)
        for task in graph.tasks
    )
    tensors = tuple(replace(tensor, shared=False) for tensor in graph.tensors)
    return replace(graph, tasks=tasks, tensors=tensors, updates=())


def estimated_costs(
    cluster: Cluster, graph: TaskGraph, names: Sequence[str], measured: Mapping[str, Speeds]
) -> OpCosts:
    """Return cost functions from peak speeds, for each of some devices.

    Parameters
    ----------
    measured
        Speeds of devices of which the cluster does not say them, by name.
    """
    return OpCosts(cluster, main_dtype(graph), names=names, measured=measured)


def fitted_costs(
    cluster: Cluster, measured: Sequence[MeasuredNetwork], names: Sequence[str]
) -> OpCosts:
    """Return cost functions whose coefficients fit measured networks, for each of some devices.

    Raises
    ------
    ShardingError
        Fewer than MIN_SIZES different sizes were measured.
    """
    samples: dict[tuple[str, str], list[tuple[TaskWork, float]]] = defaultdict(list)
    for network in measured:
        graph = network.sharded.graph
        work = graph_work(graph)
        for index, task in enumerate(graph.tasks):
            if work.is_collective[index]:
                continue
            size = TaskWork(int(work.flops[index]), int(work.bytes[index]))
            for device, cost in zip(cluster.devices, network.costs[task.name], strict=True):
                if cost.ns:
                    for key in op_types(plain_op(task.op)):
                        samples[device.name, key].append((size, float(cost.ns)))
    fitted: dict[str, dict[str, OpRegression]] = defaultdict(dict)
    for (device_name, key), of_op in samples.items():
        if len({size for size, _ in of_op}) >= MIN_SIZES:
            fitted[device_name][key] = fit_op_regression(of_op)
    lacking = [name for name in names if "" not in fitted[name]]
    if lacking:
        raise ShardingError(
            f"too few kernels of different sizes were measured on {', '.join(lacking)} to say what "
            f"others cost; name the degrees, or estimate costs"
        )
    return OpCosts(cluster, fitted=fitted, names=names)
