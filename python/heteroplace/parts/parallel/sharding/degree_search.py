"""A model, a cluster and a batch -> all degrees, ranked, and the plan of the best.

DistIR (arXiv 2111.05426), section 5: simulate the grid, drop what does not fit, and take the best
few on. Here all are ranked by costs that are fitted to kernels of a few sizes, then the best few by
the costs of their own kernels, and of these some by real runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from heteroplace.costs.prediction.op_costs import OpCosts
from heteroplace.errors import InfeasibleError, ShardingError
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import CollectiveCosts
from heteroplace.model.demands import check_reachable
from heteroplace.model.units import format_bytes
from heteroplace.parts.parallel.sharding.collective_groups import Group, groups_of_grid
from heteroplace.parts.parallel.sharding.model_source import ModelSource
from heteroplace.parts.parallel.sharding.plan_trials import run_times
from heteroplace.parts.parallel.sharding.rank_candidates import candidate_names, rank_ids
from heteroplace.parts.parallel.sharding.shard_costs import (
    check_measurable,
    estimated_costs,
    fitted_costs,
)
from heteroplace.parts.parallel.sharding.shard_options import ESTIMATE, MEASURE, ShardOptions
from heteroplace.parts.parallel.sharding.sharded_plan import ShardedModel, plan_models
from heteroplace.parts.parallel.sharding.strategies import strategy_of
from heteroplace.parts.parallel.transforms.degrees import (
    Degrees,
    enumerate_degrees,
    num_ranks,
    rank_devices,
)
from heteroplace.parts.parallel.transforms.search import search
from heteroplace.parts.parallel.transforms.search_evaluator import (
    SearchProblem,
    row_of_plan,
    sum_replicas,
)
from heteroplace.parts.parallel.transforms.search_rows import SearchRow, check_table, ranked
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph
from heteroplace.parts.parallel.transforms.strategy import Strategy, rewrite

KERNELS_OF_BEST = 5
"""So many of the best degrees at least are costed again, each by its own kernels, and all that are
faster by fitted costs than the best of these, up to the next number."""
_MAX_KERNELS = 12
_SIZES = 3
"""Numbers of rows that are measured for each number of lanes."""


@dataclass(frozen=True)
class Grid:
    """What a search has found."""

    rows: tuple[SearchRow, ...]
    """Of all degrees; the best ones by the costs of their own kernels."""
    models: tuple[ShardedModel, ...]
    """The plans of the best ones, for each strategy that is left open, the fastest by their costs
    first."""
    measured_ns: Mapping[Strategy, int] = field(default_factory=dict)
    """What a real run of the whole batch takes (`sharding.trials`); empty: none ran."""

    @property
    def best(self) -> ShardedModel:
        """The plan to run: the fastest that ran, if any did."""
        return self._fastest(self.models)

    def best_of(self, degrees: Degrees) -> ShardedModel:
        """Return the plan of some degrees that are among the best."""
        return self._fastest([each for each in self.models if each.strategy.degrees == degrees])

    def measured_of(self, degrees: Degrees) -> int | None:
        """Return what the fastest plan of some degrees takes in a real run; None: none ran."""
        times = [ns for strategy, ns in self.measured_ns.items() if strategy.degrees == degrees]
        return min(times, default=None)

    def with_runs(self, measured_ns: Mapping[Strategy, int]) -> Grid:
        """Return the grid with real runs: its rows are of the plans that they chose."""
        grid = replace(self, measured_ns=measured_ns)
        ran = {strategy.degrees for strategy in measured_ns}
        rows = [
            replace(row_of(grid.best_of(row.degrees)), uncovered=row.uncovered)
            if row.degrees in ran
            else row
            for row in self.rows
        ]
        return replace(grid, rows=tuple(rows))

    def _fastest(self, models: Sequence[ShardedModel]) -> ShardedModel:
        ran = [model for model in models if model.strategy in self.measured_ns]
        if not ran:
            return models[0]
        return min(ran, key=lambda model: self.measured_ns[model.strategy])


def search_degrees(
    source: ModelSource,
    cluster: Cluster,
    options: ShardOptions,
    path: Path | None = None,
) -> Grid:
    """Simulate all degrees for the devices of a cluster, plan the best few, and run some of them.

    Where there is one plan only, it is run if the options say how many are.

    Parameters
    ----------
    options
        Where they say degrees, these alone are planned.
    path
        A table of rows; those that it has are not simulated again.

    Raises
    ------
    InfeasibleError
        None of them fits into memory; the message says which comes nearest.
    ShardingError, ClusterError
        No degrees are possible, or devices are not connected; `path` is another file, or given
        degrees leave no rows for it.
    HeteroPlaceError
        As `plan_model` and `run_times`.
    """
    if options.most_run and options.costs == ESTIMATE:
        check_reachable(cluster)
        names = candidate_names(cluster, options)
        check_measurable(cluster, names, "plans cannot be run", "run_best=0 (--run-best 0)")
    grid = _planned(source, cluster, options, path)
    models = grid.models[: options.most_run]
    if len(models) < (2 if options.run_best is None else 1):
        return grid
    return grid.with_runs(run_times(models, options))


def _planned(
    source: ModelSource, cluster: Cluster, options: ShardOptions, path: Path | None
) -> Grid:
    """All degrees, of which nothing has run."""
    if path is not None:
        check_table(path)  # before anything is measured
    if isinstance(options.degrees, Degrees):
        if path is not None:
            raise ShardingError(
                f"{path}: a table has the rows of a search, and degrees {options.degrees} leave "
                f"one plan; leave out the table, or the degrees"
            )
        models = plan_models(source, [options.degrees], cluster, options)
        return Grid((row_of(models[0]),), tuple(models))
    degrees = _all_degrees(source, cluster, options)
    rows = search(
        _problem(source, cluster, options, degrees), [options.batch], degrees=degrees, path=path
    )
    best = ranked(rows)
    if not best:
        raise _nothing_fits(rows, cluster, options)
    planned_rows = {row.degrees: row for row in rows}
    num_best = max(KERNELS_OF_BEST, options.most_run)
    first = [row.degrees for row in best[:num_best]]
    models = plan_models(source, first, cluster, options)
    for row in best[num_best : max(num_best, _MAX_KERNELS)]:
        fastest_ns = min(each.solution.predicted_ns for each in models)
        if (row.makespan_ns or 0) >= fastest_ns:
            break
        models += plan_models(source, [row.degrees], cluster, options)
    models.sort(key=lambda model: model.solution.predicted_ns)
    for model in reversed(models):  # of each degrees the fastest is the last one
        key = model.strategy.degrees
        planned_rows[key] = replace(row_of(model), uncovered=planned_rows[key].uncovered)
    return Grid(tuple(planned_rows[each] for each in sorted(planned_rows)), tuple(models))


def row_of(model: ShardedModel) -> SearchRow:
    """Return the row of a table for a planned model."""
    solution, degrees = model.solution, model.strategy.degrees
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    timeline = solution.timeline
    timeline = replace(timeline, peak_bytes=model.peak_bytes)
    devices = rank_devices(cluster, degrees, rank_ids(cluster, model.options))
    return row_of_plan(model.options.batch, degrees, graph, cluster, plan, timeline, devices)


def _all_degrees(source: ModelSource, cluster: Cluster, options: ShardOptions) -> Sequence[Degrees]:
    """The degrees whose microbatches the module can be made of: multiples of its own rows."""
    ids = rank_ids(cluster, options)
    num_devices = num_ranks(cluster) if ids is None else len(ids)
    degrees = enumerate_degrees(num_devices, options.batch, allow_fewer=True)
    if not degrees:
        raise ShardingError(
            f"a batch of {options.batch} rows cannot be cut for {num_devices} devices in any way"
        )
    of_own = [each for each in degrees if each.rows(options.batch) % source.own_rows == 0]
    if not of_own:
        raise ShardingError(
            f"the module holds {source.own_rows} rows, and a batch of {options.batch} is no "
            f"multiple of them; import the model with a batch of 1 (input_shapes=...)"
        )
    return of_own


def _problem(
    source: ModelSource, cluster: Cluster, options: ShardOptions, degrees: Sequence[Degrees]
) -> SearchProblem:
    def rewritten(sharded: ShardedGraph, each: Degrees) -> ShardedGraph:
        return rewrite(sharded, strategy_of(options, each))

    is_plain = not options.zero and not options.recompute_every
    return SearchProblem(
        source.name,
        source.graph,
        cluster,
        _costs(source, cluster, options, degrees),
        _collectives(source, cluster, options, degrees),
        schedule=options.schedule,
        devices=rank_ids(cluster, options),
        rewrite=sum_replicas if is_plain else rewritten,
        options=f"{source.digest} zero {options.zero} recompute {options.recompute_every}",
        row_unit=source.own_rows,
    )


def _costs(
    source: ModelSource, cluster: Cluster, options: ShardOptions, degrees: Sequence[Degrees]
) -> OpCosts:
    names = candidate_names(cluster, options)
    rows_of: dict[int, set[int]] = {}
    for each in degrees:
        rows_of.setdefault(each.tensor, set()).add(each.rows(options.batch))
    if options.costs == ESTIMATE:
        lanes = min(rows_of)
        graph = source.graph(lanes, min(rows_of[lanes]), options.batch)
        return estimated_costs(cluster, graph.graph, names, source.peak_speeds(cluster))
    check_measurable(cluster, names)
    measured = []
    for lanes, rows in sorted(rows_of.items()):
        for number in _some(rows):
            try:
                source.network(lanes, number, options.batch)
            except ShardingError:
                continue  # the search tells it, of each of these degrees
            measured.append(source.measured(lanes, number, cluster, options))
    return fitted_costs(cluster, measured, names)


def _collectives(
    source: ModelSource, cluster: Cluster, options: ShardOptions, degrees: Sequence[Degrees]
) -> CollectiveCosts | None:
    """What the collectives of all degrees take, as far as it can be measured."""
    if options.costs != MEASURE:
        return None
    groups: dict[Group, None] = {}
    alike = {(each.data, each.tensor): each for each in degrees if each.data * each.tensor > 1}
    for each in alike.values():
        try:
            sharded = source.graph(each.tensor, each.rows(options.batch), options.batch)
            rewritten = rewrite(sharded, strategy_of(options, each))
        except ShardingError:
            continue  # the search tells it
        ranks = rank_devices(cluster, each, rank_ids(cluster, options))
        lanes = [ranks[each.rank(0, lane, 0)] for lane in range(each.tensor)]
        replicas = [ranks[each.rank(replica, 0, 0)] for replica in range(each.data)]
        groups |= dict.fromkeys(groups_of_grid(rewritten, lanes, replicas))
    return source.collective_times.of(cluster, groups, options)


def _some(rows: Iterable[int]) -> list[int]:
    """The smallest, the largest and what is between them."""
    ordered = sorted(rows)
    if len(ordered) <= _SIZES:
        return ordered
    return [ordered[0], ordered[len(ordered) // 2], ordered[-1]]


def _nothing_fits(
    rows: Sequence[SearchRow], cluster: Cluster, options: ShardOptions
) -> InfeasibleError | ShardingError:
    simulated = [row for row in rows if row.is_simulated]
    if not simulated:
        reasons = dict.fromkeys(f"{row.degrees}: {row.reason}" for row in rows)
        return ShardingError(f"no degrees are possible: {'; '.join(list(reasons)[:4])}")
    nearest = min(simulated, key=lambda row: row.peak_bytes / max(1, row.limit_bytes))
    return InfeasibleError(
        f"none of {len(rows)} degrees for {options.batch} rows fits into the memories of "
        f"cluster {cluster.name!r}: {nearest.degrees} comes nearest and needs "
        f"{format_bytes(nearest.peak_bytes)} on a device that has "
        f"{format_bytes(nearest.limit_bytes)}; take a smaller batch, or more devices"
    )
