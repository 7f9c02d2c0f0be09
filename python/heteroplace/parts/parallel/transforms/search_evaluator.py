"""Degrees -> a row of the search: from sums over stages if those are exact, or simulated whole.

Graphs are asked for at two numbers of rows for each number of lanes, and sizes at others follow
(`AffineSizes`). What is computed for one configuration serves the next: those with equal lanes,
rows and stages differ by microbatches only. Lanes and replicas that are alike are looked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from heteroplace.costs.coverage import Coverage
from heteroplace.costs.prediction.op_costs import OpCosts
from heteroplace.errors import ClusterError, ShardingError, UnsupportedRelayError
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import CollectiveCosts
from heteroplace.model.collector import paused_collector
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Copy, Load, Plan, Run
from heteroplace.model.step_values import is_async
from heteroplace.model.timeline import Timeline
from heteroplace.parts.parallel.transforms.assemble import assemble
from heteroplace.parts.parallel.transforms.degrees import Degrees, rank_devices
from heteroplace.parts.parallel.transforms.replicas import sum_over_replicas
from heteroplace.parts.parallel.transforms.search_rows import (
    EXCLUDED,
    REFUSED,
    STAGES,
    WHOLE,
    SearchRow,
)
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph
from heteroplace.parts.parallel.transforms.stages.stage_clock import (
    StageOrder,
    bound_ns,
    makespan_ns,
    peak_bytes,
    stage_order,
)
from heteroplace.parts.parallel.transforms.stages.stage_layout import PASSES, UPDATE, StageLayout
from heteroplace.parts.parallel.transforms.stages.stage_times import (
    AffineSizes,
    Ranks,
    StageBytes,
    StageTimes,
    copies_apart,
    stage_bytes,
    stage_times,
)
from heteroplace.simulate.simulator import simulate

IntArray = NDArray[np.int64]

Source = Callable[[int, int, int], ShardedGraph]
"""(lanes, rows of a microbatch, rows of the whole batch) -> the graph of one replica."""
Rewrite = Callable[[ShardedGraph, Degrees], ShardedGraph]
"""The graph of one replica -> that for several, of as many stages."""

_UNITS = (2, 3)
"""Row units of the graphs from which sizes follow; not 1, which compilers take for no rows at all
where a unit is one row."""
_BATCH_UNITS = 6
"""Row units of the batch that these graphs are parts of: a multiple of both. A batch only divides a
loss, so sizes are those of any other batch, which need not be a multiple of 3."""

_REFUSALS = (ShardingError, ClusterError, UnsupportedRelayError)
"""Why some degrees cannot be, and others may."""


def sum_replicas(sharded: ShardedGraph, degrees: Degrees) -> ShardedGraph:
    """Return the graph in which gradients are summed over replicas, if there are several."""
    if degrees.data == 1 or not sharded.is_training:
        return sharded
    return sum_over_replicas(sharded)


@dataclass(frozen=True)
class SearchProblem:
    """What is searched for the best degrees."""

    name: str
    source: Source
    cluster: Cluster
    costs: OpCosts
    collectives: CollectiveCosts | None = None
    """Fitted times of collectives; None: rings over the cluster's links."""
    schedule: str = "1f1b"
    devices: tuple[int, ...] | None = None
    """The device of each rank; None: as `rank_devices` chooses."""
    rewrite: Rewrite = sum_replicas
    """What is done to the graph for several replicas: ZeRO, recomputation. Any other than
    `sum_replicas` is done for each configuration anew."""
    options: str = ""
    """What `source` and `rewrite` stand for, in the file of rows: model, ZeRO, recomputation."""
    row_unit: int = 1
    """Rows of a microbatch are a multiple of it: what `source` can make graphs of."""


@dataclass
class _Family:
    """The graphs of one number of lanes."""

    sharded: ShardedGraph
    sizes: AffineSizes
    ops: list[str]
    layouts: dict[int, StageLayout]
    rows: int = -1
    """For which the times are."""
    run_ns: IntArray | None = None
    coverage: Coverage = field(default_factory=Coverage)


@dataclass(frozen=True)
class _Stages:
    """What the stages take and hold, for one number of rows."""

    layout: StageLayout
    times: tuple[StageTimes, ...]
    sizes: StageBytes
    coverage: Coverage


class Evaluator:
    """Makes rows, and keeps what the next one needs. Not thread-safe."""

    def __init__(self, problem: SearchProblem) -> None:
        self._problem = problem
        self._sources: dict[int, tuple[ShardedGraph, ...]] = {}
        self._families: dict[tuple[int, ...], _Family | str] = {}
        self._stages: dict[tuple[int, ...], _Stages | str] = {}
        self._orders: dict[tuple[object, ...], StageOrder] = {}
        self._ranks: dict[tuple[int, int, int], Ranks] = {}
        self._exact: dict[tuple[int, int, int], bool] = {}

    def prepare(self, degrees: Degrees, batch: int) -> None:
        """Make the graphs that a configuration needs, before processes share them."""
        try:
            self._family(degrees)
        except _REFUSALS:
            return  # `row` tells it

    def row(self, batch: int, degrees: Degrees, limit_ns: int | None = None) -> SearchRow:
        """Return the row of a configuration.

        Parameters
        ----------
        limit_ns
            A configuration whose lower bound is above it is not simulated; None: all are.
        """
        try:
            rows = degrees.rows(batch)
            stages = self._summed(batch, degrees, rows)
            if isinstance(stages, str):
                return self._whole_row(batch, degrees, rows, 0, stages)
            return self._stage_row(batch, degrees, rows, stages, limit_ns)
        except _REFUSALS as fault:
            return SearchRow(batch, degrees, REFUSED, reason=str(fault))

    def simulated(self, batch: int, degrees: Degrees) -> SearchRow:
        """Return the row of a configuration by simulating every step, whatever can be summed.

        Raises
        ------
        ShardingError
            It cannot be made.
        """
        return self._whole_row(batch, degrees, degrees.rows(batch), 0, "asked for")

    def bound_ns(self, batch: int, degrees: Degrees) -> int:
        """Return what no order of the passes takes less than; 0: not known."""
        try:
            stages = self._summed(batch, degrees, degrees.rows(batch))
        except _REFUSALS:
            return 0  # `row` tells it
        return 0 if isinstance(stages, str) else self._bound_ns(degrees, stages)

    def _bound_ns(self, degrees: Degrees, stages: _Stages) -> int:
        layout = stages.layout
        has_engines = not self._is_exact(degrees)
        return max(
            bound_ns(times, layout.groups, degrees.micro_batches, has_engines)
            for times in stages.times
        )

    def _is_exact(self, degrees: Degrees) -> bool:
        """Whether sums over stages are what the whole simulation finds."""
        key = (degrees.data, degrees.tensor, degrees.pipeline)
        if key not in self._exact:
            ids = self._devices(degrees).devices.ravel().tolist()
            self._exact[key] = copies_apart(self._problem.cluster, ids)
        return self._exact[key]

    def _family(self, degrees: Degrees) -> _Family | str:
        """The graphs that a configuration needs, or why they cannot be summed."""
        problem = self._problem
        key: tuple[int, ...] = (degrees.tensor, min(degrees.data, 2))
        if problem.rewrite is not sum_replicas:
            key = (degrees.tensor, degrees.data, degrees.pipeline)
        if key not in self._families:
            with paused_collector():
                self._families[key] = self._make_family(degrees)
        return self._families[key]

    def _make_family(self, degrees: Degrees) -> _Family | str:
        unit = self._problem.row_unit
        known_rows = (_UNITS[0] * unit, _UNITS[1] * unit)
        if degrees.tensor not in self._sources:
            self._sources.clear()  # those of one number of lanes at a time
            try:
                self._sources[degrees.tensor] = tuple(
                    self._problem.source(degrees.tensor, rows, _BATCH_UNITS * unit)
                    for rows in known_rows
                )
            except UnsupportedRelayError as fault:
                # The network mixes the rows of a batch; it may still run with all of them at once.
                return str(fault)
        first, second = (
            self._problem.rewrite(each, degrees) for each in self._sources[degrees.tensor]
        )
        for family in self._families.values():
            if isinstance(family, _Family) and family.sharded is first:
                return family  # inference: the same for any number of replicas
        try:
            sizes = AffineSizes(known_rows, (first, second))
        except ShardingError as fault:
            return str(fault)
        return _Family(first, sizes, [task.op for task in first.graph.tasks], {})

    def _devices(self, degrees: Degrees) -> Ranks:
        key = (degrees.data, degrees.tensor, degrees.pipeline)
        if key not in self._ranks:
            problem = self._problem
            ids = rank_devices(problem.cluster, degrees, problem.devices)
            array = np.array(ids, dtype=np.int64).reshape(key)
            self._ranks[key] = Ranks(problem.cluster, array, problem.collectives)
        return self._ranks[key]

    def _summed(self, batch: int, degrees: Degrees, rows: int) -> _Stages | str:
        """What the stages take, or why they cannot be summed."""
        key = (degrees.data, degrees.tensor, degrees.pipeline, rows)
        if key in self._stages:
            return self._stages[key]
        family = self._family(degrees)
        if isinstance(family, str):
            return family
        ranks = self._devices(degrees)
        try:
            if degrees.pipeline not in family.layouts:
                cuts = family.sharded.stages(degrees.pipeline)
                family.layouts[degrees.pipeline] = StageLayout(family.sharded, cuts)
            layout = family.layouts[degrees.pipeline]
            sizes = family.sizes.at(rows)
            if family.rows != rows or family.run_ns is None:
                family.run_ns, family.coverage = self._problem.costs.times(family.ops, sizes.work)
                family.rows = rows
            times = stage_times(layout, sizes, family.run_ns, ranks)
            self._stages[key] = _Stages(layout, times, stage_bytes(layout, sizes), family.coverage)
        except ShardingError as fault:
            self._stages[key] = str(fault)
        return self._stages[key]

    def _stage_row(
        self, batch: int, degrees: Degrees, rows: int, stages: _Stages, limit_ns: int | None
    ) -> SearchRow:
        """A row from sums over stages, or simulated whole if devices do two things at once."""
        layout, bound = stages.layout, self._bound_ns(degrees, stages)
        if limit_ns is not None and bound > limit_ns:
            return _covered(SearchRow(batch, degrees, EXCLUDED, bound), stages.coverage)
        if not self._is_exact(degrees):
            why = "devices copy or exchange beside their tasks, or the cluster has a host"
            return self._whole_row(batch, degrees, rows, bound, why)
        order = self._order(degrees, layout)
        spans = [makespan_ns(order, times) for times in stages.times]
        shares = [
            _shares(times, layout, degrees.micro_batches, max(spans)) for times in stages.times
        ]
        peaks = peak_bytes(order, stages.sizes).T.ravel().tolist()  # by lane, then stage, as ranks
        ids = self._devices(degrees).devices.ravel().tolist()
        peak, limit = _nearest(self._problem.cluster, peaks * degrees.data, ids)
        row = SearchRow(batch, degrees, STAGES, bound, max(spans), peak, limit, *_mean(shares))
        return _covered(row, stages.coverage)

    def _order(self, degrees: Degrees, layout: StageLayout) -> StageOrder:
        is_training, schedule = layout.sharded.is_training, self._problem.schedule
        key = (schedule, degrees.pipeline, degrees.micro_batches, tuple(layout.groups))
        if key not in self._orders:
            self._orders[key] = stage_order(
                schedule, degrees.pipeline, degrees.micro_batches, is_training, layout.groups
            )
        return self._orders[key]

    def _whole_row(
        self, batch: int, degrees: Degrees, rows: int, bound: int, why: str
    ) -> SearchRow:
        """A row from the plan of the configuration, step by step."""
        problem, cluster = self._problem, self._problem.cluster
        source = problem.source(degrees.tensor, rows, batch)
        sharded = problem.rewrite(source, degrees)
        ids = rank_devices(cluster, degrees, problem.devices)
        plan = assemble(sharded, cluster, degrees, problem.schedule, ids)
        table, coverage = problem.costs.table(sharded.graph)
        table = replace(table, collectives=problem.collectives)
        timeline = simulate(sharded.graph, cluster, table, plan)
        row = row_of_plan(batch, degrees, sharded.graph, cluster, plan, timeline, ids)
        return _covered(replace(row, bound_ns=bound, reason=why), coverage)


def row_of_plan(
    batch: int,
    degrees: Degrees,
    graph: TaskGraph,
    cluster: Cluster,
    plan: Plan,
    timeline: Timeline,
    devices: Sequence[int],
) -> SearchRow:
    """Return the row of a plan that was simulated step by step.

    Parameters
    ----------
    devices
        Of each rank.
    """
    lengths = {step: end - start for step, (start, end) in timeline.step_times.items()}
    memories = {cluster.devices[device].memory for device in devices}  # the host may be no rank
    units = {cluster.unit_ids[device][0] for device in devices}
    busy = shared = 0
    for index, step in enumerate(plan.steps):
        if isinstance(step, Run):
            busy += lengths[index]
        elif isinstance(step, Collective):
            if not is_async(graph, cluster, step):  # else its devices compute meanwhile
                busy += lengths[index] * len(step.devices)
            shared += lengths[index] * len(step.devices)
        elif isinstance(step, (Copy, Load)):
            ends = sum(memory in memories for memory in (step.src, step.dst))
            occupied = units.intersection(cluster.route_resources(step.route))
            busy += len(occupied) * lengths[index]
            shared += ends * lengths[index]
    total = max(1, timeline.makespan_ns * degrees.num_devices)
    peaks = [timeline.peak_bytes[cluster.devices[device].memory] for device in devices]
    peak, limit = _nearest(cluster, peaks, devices)
    return SearchRow(
        batch, degrees, WHOLE, 0, timeline.makespan_ns, peak, limit,
        1 - busy / total, shared / total,
    )  # fmt: skip


def _nearest(cluster: Cluster, peaks: Sequence[int], devices: Sequence[int]) -> tuple[int, int]:
    """Peak and limit of the rank that is nearest to its limit; ties: the first."""
    limits = [cluster.memories[cluster.devices[device].memory].bytes for device in devices]
    pairs = list(zip(peaks, limits, strict=True))
    return max(pairs, key=lambda pair: pair[0] / pair[1])


def _covered(row: SearchRow, coverage: Coverage) -> SearchRow:
    most = max((each.most for each in coverage.beyond), default=1.0)
    return replace(row, uncovered=sum(coverage.uncovered.values()), extrapolation=most)


def _shares(
    times: StageTimes, layout: StageLayout, micro_batches: int, makespan: int
) -> tuple[float, float]:
    """(bubble, communication) of one replica, as shares of its devices' time."""
    count = [1 if phase == UPDATE else micro_batches for phase in PASSES]

    def total_ns(of_stages: Sequence[Sequence[int]]) -> int:
        return sum(n * ns for passes in of_stages for n, ns in zip(count, passes, strict=True))

    copies = 2 * micro_batches * sum(times.copy_ns) * layout.num_lanes
    exchange = total_ns(times.exchange_ns) + copies
    total = max(1, makespan * layout.num_stages * layout.num_lanes)
    return 1 - (total_ns(times.busy_ns) + exchange) / total, exchange / total


def _mean(shares: Sequence[tuple[float, float]]) -> tuple[float, float]:
    bubbles, exchanges = zip(*shares, strict=True)
    return sum(bubbles) / len(shares), sum(exchanges) / len(shares)
