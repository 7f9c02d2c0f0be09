"""Sizes and times of tasks -> what each pass of each stage takes, copies, and holds.

The arithmetic is that of `heteroplace.simulate` and `heteroplace.model.memory_use.live_memory` for
devices that neither copy nor exchange beside their tasks (`copy_engines` 0), in whole nanoseconds
and bytes, so that sums over stages are what the walk over all steps finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heteroplace.costs.prediction.op_costs import GraphWork, graph_work, plain_op
from heteroplace.errors import ShardingError
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import CollectiveCosts, collective_kind, collective_ns
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph
from heteroplace.parts.parallel.transforms.stages.stage_layout import PASSES, UPDATE, StageLayout

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a sharded graph for some rows in a microbatch."""

    work: GraphWork
    tensor_bytes: IntArray
    """[num_tensors]"""
    weight_bytes: IntArray
    """[num_tasks]"""
    workspace_bytes: IntArray
    """[num_tasks]"""


def sizes_of(sharded: ShardedGraph) -> Sizes:
    """Return the sizes of a graph."""
    graph = sharded.graph
    return Sizes(
        graph_work(graph),
        np.array([tensor.bytes for tensor in graph.tensors], dtype=np.int64),
        np.array([task.weight_bytes for task in graph.tasks], dtype=np.int64),
        np.array([task.workspace_bytes for task in graph.tasks], dtype=np.int64),
    )


class AffineSizes:
    """Sizes that grow by the same with each row unit, from the graphs of two numbers of rows.

    Parameters
    ----------
    sharded
        The graphs of the numbers of rows in `rows`, which differ by one unit: the rows that a
        graph can be made of are multiples of it, so that what a unit adds is a whole number.

    Raises
    ------
    ShardingError
        The two have other tasks or other edges, as if rows decided what is computed.
    """

    def __init__(self, rows: tuple[int, int], sharded: tuple[ShardedGraph, ShardedGraph]) -> None:
        first, second = sharded
        self._unit = rows[1] - rows[0]
        is_aligned = self._unit > 0 and rows[0] % self._unit == 0
        if not is_aligned or _structure(first) != _structure(second):
            raise ShardingError(
                f"the graphs of {rows[0]} and of {rows[1]} rows of {first.graph.name!r} have other "
                f"tasks, or the numbers are no multiples of their difference: sizes at other rows "
                f"do not follow"
            )
        self._rows = rows[0]
        self._low, self._high = sizes_of(first), sizes_of(second)

    def at(self, rows: int) -> Sizes:
        """Return the sizes for so many rows, a multiple of the unit."""
        num_units, rest = divmod(rows - self._rows, self._unit)
        if rest:
            raise ShardingError(
                f"the sizes of microbatches of {rows} rows; expected a multiple of {self._unit} "
                f"rows, of which the model is made"
            )

        def value(get: Callable[[Sizes], IntArray]) -> IntArray:
            low = get(self._low)
            return low + (get(self._high) - low) * num_units

        work = self._low.work
        return Sizes(
            GraphWork(
                value(lambda sizes: sizes.work.flops),
                value(lambda sizes: sizes.work.bytes),
                work.launches,
                work.is_collective,
                work.uncovered,
            ),
            value(lambda sizes: sizes.tensor_bytes),
            value(lambda sizes: sizes.weight_bytes),
            value(lambda sizes: sizes.workspace_bytes),
        )


def _structure(sharded: ShardedGraph) -> object:
    graph = sharded.graph
    return (
        [plain_op(task.op) for task in graph.tasks],
        [(tensor.producer, tensor.index, tensor.consumers) for tensor in graph.tensors],
        (graph.outputs, graph.updates, sharded.num_layers),
        (sharded.layer, sharded.lane, sharded.backward, sharded.replica),
    )


@dataclass(frozen=True)
class StageTimes:
    """What the stages of one replica take and hold, for one number of rows. Times in ns."""

    pass_ns: tuple[tuple[int, ...], ...]
    """[num_stages][len(PASSES)]: from the common start of all lanes to the end."""
    work_ns: tuple[tuple[int, ...], ...]
    """[num_stages][len(PASSES)]: tasks of the lane with the most, without collectives."""
    busy_ns: tuple[tuple[int, ...], ...]
    """[num_stages][len(PASSES)]: tasks of all lanes together."""
    exchange_ns: tuple[tuple[int, ...], ...]
    """[num_stages][len(PASSES)]: collectives of all lanes together."""
    copy_ns: tuple[int, ...]
    """For each `StageLayout.groups`."""


@dataclass(frozen=True)
class StageBytes:
    """What the stages hold, for one number of rows. [num_stages, num_lanes, num_phases] each."""

    held: IntArray
    """[num_stages, num_lanes]: always: weights, state, the largest workspace."""
    net: IntArray
    """What a phase leaves more than it found."""
    peak: IntArray
    """The most that is there while it runs, above what it found."""
    first_net: IntArray
    """`net` of the first time, when what is added to begins."""
    first_peak: IntArray


class Ranks:
    """The devices of replicas, lanes and stages, and what is alike among them.

    Parameters
    ----------
    devices
        Device ids, [data, tensor, pipeline].
    """

    def __init__(
        self, cluster: Cluster, devices: IntArray, fitted: CollectiveCosts | None = None
    ) -> None:
        self.cluster, self.devices, self._fitted = cluster, devices, fitted
        self.is_uniform = is_uniform(cluster, devices.ravel().tolist())
        self._exchanges: dict[tuple[str, int, tuple[int, ...]], int] = {}
        self._transfers: dict[tuple[int, int, int], int] = {}

    def exchange_ns(self, op: str, num_bytes: int, devices: IntArray) -> int:
        """Return the time of a collective of an op between devices."""
        members = tuple(self.devices.ravel()[: len(devices)] if self.is_uniform else devices)
        key = (op, num_bytes, members)
        if key not in self._exchanges:
            kind = collective_kind(op)
            assert kind is not None
            ids = tuple(map(int, members))
            measured_ns = collective_ns(self.cluster, kind, num_bytes, ids, 0, self._fitted)
            self._exchanges[key] = measured_ns
        return self._exchanges[key]

    def transfer_ns(self, src: int, dst: int, num_bytes: int) -> int:
        """Return the time of a copy from the memory of one device to that of another."""
        key = (0, 0, num_bytes) if self.is_uniform else (src, dst, num_bytes)
        if key not in self._transfers:
            memories = [self.cluster.devices[device].memory for device in (src, dst)]
            route = self.cluster.route(memories[0], memories[1])
            self._transfers[key] = self.cluster.transfer_ns(route, num_bytes)
        return self._transfers[key]


def is_uniform(cluster: Cluster, devices: Sequence[int]) -> bool:
    """Say whether devices are alike, and so are the links between any two of them."""
    kinds = {
        (
            device.kind,
            device.target,
            device.flops_per_second,
            device.memory_bytes_per_second,
            device.launch_ns,
            device.model,
        )
        for device in (cluster.devices[index] for index in devices)
    }
    memories = [cluster.devices[index].memory for index in devices]
    pairs = {(link.src, link.dst) for link in cluster.links}
    ways = {
        (link.bytes_per_second, link.latency_ns, link.measured)
        for link in cluster.links
        if link.src in memories and link.dst in memories
    }
    is_full = all((a, b) in pairs for a in memories for b in memories if a != b)
    return is_full and len(kinds) <= 1 and len(ways) <= 1


def stage_times(
    layout: StageLayout, sizes: Sizes, run_ns: IntArray, ranks: Ranks
) -> tuple[StageTimes, ...]:
    """Return what the stages of each replica take; one entry if all replicas are alike.

    Parameters
    ----------
    run_ns
        Of each task on each device of the cluster, [num_tasks, num_devices].

    Raises
    ------
    ShardingError
        Lanes of a stage do not end a pass at the same time, or copies between lanes differ; or
        replicas differ, and exchange something at the end.
    """
    times = []
    used = ranks.devices.ravel().tolist()
    # Devices with equal figures may have been measured to differ.
    is_alike = ranks.is_uniform and all(
        np.array_equal(run_ns[:, device], run_ns[:, used[0]]) for device in used
    )
    for replica in range(1 if is_alike else len(ranks.devices)):
        task_ns = _task_times(layout, sizes, run_ns, ranks, replica)
        times.append(_sum_stages(layout, sizes, task_ns, ranks, replica))
    if len(set(times)) == 1:
        return (times[0],)
    if layout.sharded.is_training:
        raise ShardingError("replicas that are not alike wait for each other at the end of a step")
    return tuple(times)


def _task_times(
    layout: StageLayout, sizes: Sizes, run_ns: IntArray, ranks: Ranks, replica: int
) -> IntArray:
    """The time of each task in one replica, [num_tasks]."""
    lanes = np.maximum(layout.lane_of, 0)
    devices = ranks.devices[replica][lanes, layout.stage_of]
    task_ns: IntArray = run_ns[np.arange(len(devices)), devices]
    tasks = layout.collectives
    if not len(tasks):
        return task_ns
    num_bytes = np.maximum.reduceat(sizes.tensor_bytes[layout.exchanged], layout.exchanged_starts)
    stages, own = layout.stage_of[tasks], layout.lane_of[tasks]
    rows = np.stack([layout.collective_ops, num_bytes, stages, own], axis=1)
    if ranks.is_uniform:
        rows[:, 2], rows[:, 3] = 0, np.minimum(rows[:, 3], 0)
    distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
    times = []
    for op, size, stage, lane in distinct.tolist():
        over_lanes = lane < 0
        members = ranks.devices[replica, :, stage] if over_lanes else ranks.devices[:, lane, stage]
        times.append(ranks.exchange_ns(layout.op_names[op], size, members))
    task_ns[tasks] = np.array(times, dtype=np.int64)[inverse.reshape(-1)]
    return task_ns


def _sum_stages(
    layout: StageLayout, sizes: Sizes, task_ns: IntArray, ranks: Ranks, replica: int
) -> StageTimes:
    ordered = task_ns[layout.order]
    over_lanes = layout.lane_of[layout.order] < 0
    lane_ns = np.zeros((len(layout.block_of_segment), layout.num_lanes), dtype=np.int64)
    own = ~over_lanes
    np.add.at(lane_ns, (layout.segment[own], layout.lane_of[layout.order][own]), ordered[own])
    tails = lane_ns[layout.is_tail & (layout.block_of_segment % len(PASSES) != UPDATE)]
    if len(tails) and (tails.min(axis=1) != tails.max(axis=1)).any():
        raise ShardingError("lanes of a stage do not end a pass at the same time")
    shape = (layout.num_stages * len(PASSES),)
    pass_ns, exchange_ns = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    np.add.at(pass_ns, layout.block_of_segment, lane_ns.max(axis=1))
    over = over_lanes | layout.is_collective[layout.order]
    exchanged = ordered[over] * np.where(over_lanes[over], layout.num_lanes, 1)
    np.add.at(exchange_ns, layout.block_of_segment[layout.segment[over]], exchanged)
    np.add.at(pass_ns, layout.block_of_segment[layout.segment[over_lanes]], ordered[over_lanes])
    work_ns = np.zeros((*shape, layout.num_lanes), dtype=np.int64)
    alone = ~over
    blocks = layout.block_of_segment[layout.segment[alone]]
    np.add.at(work_ns, (blocks, layout.lane_of[layout.order][alone]), ordered[alone])
    return StageTimes(
        _by_stage(pass_ns),
        _by_stage(work_ns.max(axis=1)),
        _by_stage(work_ns.sum(axis=1)),
        _by_stage(exchange_ns),
        tuple(_copy_ns(layout, sizes, ranks, replica, number)
              for number in range(len(layout.groups))),
    )  # fmt: skip


def _by_stage(values: IntArray) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, values.reshape(-1, len(PASSES)).tolist()))


def _copy_ns(layout: StageLayout, sizes: Sizes, ranks: Ranks, replica: int, number: int) -> int:
    """The time of all copies of a group, which are one after another in each lane."""
    group = layout.groups[number]
    totals: dict[int, int] = {}
    for tensor, lane in layout.copied[number]:
        src = int(ranks.devices[replica, lane, group.src])
        dst = int(ranks.devices[replica, lane, group.dst])
        time_ns = ranks.transfer_ns(src, dst, int(sizes.tensor_bytes[tensor]))
        totals[lane] = totals.get(lane, 0) + time_ns
    if len(set(totals.values())) > 1 or len(totals) < layout.num_lanes:
        raise ShardingError("lanes of a stage copy what does not take the same time")
    return next(iter(totals.values()))


def stage_bytes(layout: StageLayout, sizes: Sizes) -> StageBytes:
    """Return what the stages hold."""
    num_phases = len(PASSES) + len(layout.groups)
    shape = (layout.num_stages, layout.num_lanes, num_phases)
    stage, lane, phase, _, ends, tensor, is_first = layout.events.T
    num_bytes = sizes.tensor_bytes[tensor] * (1 - 2 * ends)
    key = (stage * layout.num_lanes + lane) * num_phases + phase
    first_net, first_peak = _sum_events(key, num_bytes, shape)
    net, peak = _sum_events(key, np.where(is_first == 1, 0, num_bytes), shape)
    return StageBytes(_held(layout, sizes), net, peak, first_net, first_peak)


def _sum_events(key: IntArray, num_bytes: IntArray, shape: tuple[int, ...]) -> tuple[IntArray, ...]:
    """(net, peak) of the events of each key, which stand together."""
    net, peak = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    if len(key):
        starts = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
        running = np.cumsum(num_bytes)
        before = np.append(0, running[starts[1:] - 1])
        ends = running[np.append(starts[1:], len(key)) - 1]
        net.ravel()[key[starts]] = ends - before
        peak.ravel()[key[starts]] = np.maximum.reduceat(running, starts) - before
    return net, peak


def _held(layout: StageLayout, sizes: Sizes) -> IntArray:
    held = np.zeros((layout.num_stages, layout.num_lanes), dtype=np.int64)
    workspace = np.zeros_like(held)
    for lane in range(layout.num_lanes):
        here = np.flatnonzero((layout.lane_of == lane) | (layout.lane_of < 0))
        stages = layout.stage_of[here]
        np.add.at(held[:, lane], stages, sizes.weight_bytes[here])
        np.maximum.at(workspace[:, lane], stages, sizes.workspace_bytes[here])
    stage, lane, tensor = layout.states.T
    np.add.at(held, (stage, lane), sizes.tensor_bytes[tensor])
    for stage_id, lane_id, _, num_bytes in layout.named_weights:
        held[stage_id, lane_id] += num_bytes
    return held + workspace


def copies_apart(cluster: Cluster, devices: Sequence[int]) -> bool:
    """Say whether devices neither copy nor exchange anything beside their tasks, each on its own.

    Then all that happens on a device is in the order of the plan, and stages can be summed.
    """
    members = [cluster.devices[device] for device in devices]
    units = [unit for device in members for unit in device.units]
    memories = [device.memory for device in members]
    if cluster.host is not None or any(device.copy_engines != 0 for device in members):
        return False
    if len(set(units)) < len(units) or len(set(memories)) < len(memories):
        return False
    pairs: dict[str, set[frozenset[int]]] = {}
    for link in cluster.links:
        pairs.setdefault(link.channel, set()).add(frozenset((link.src, link.dst)))
    is_apart = cluster.congestion in ("none", "port") or all(
        len(copies) == 1 for copies in pairs.values()
    )
    direct = {(link.src, link.dst) for link in cluster.links}
    blocks_both = all(cluster.copying_device(a, b) is None for a in memories for b in memories)
    return (
        is_apart
        and blocks_both
        and cluster.congestion != "bus"
        and all((a, b) in direct for a in memories for b in memories if a != b)
    )
