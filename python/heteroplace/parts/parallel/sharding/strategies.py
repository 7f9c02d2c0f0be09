"""Degrees of a model, as options say -> a plan for each strategy, which has no costs yet.

Where it is left open when weight gradients are summed, there are two: the costs of their own
kernels tell which of them is faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import tvm

from heteroplace.lower.compile import CompiledNetwork
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.plan import Plan
from heteroplace.model.solution import Solution
from heteroplace.parts.parallel.sharding.in_plan import PlanToTime, shorter
from heteroplace.parts.parallel.sharding.inner_values import TaskMemory
from heteroplace.parts.parallel.sharding.model_source import ModelSource
from heteroplace.parts.parallel.sharding.rank_candidates import candidate_names, rank_ids
from heteroplace.parts.parallel.sharding.shard_costs import check_measurable
from heteroplace.parts.parallel.sharding.shard_memory import program_peaks
from heteroplace.parts.parallel.sharding.shard_options import AUTO, END, MEASURE, ShardOptions
from heteroplace.parts.parallel.transforms.degrees import Degrees, rank_devices
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph
from heteroplace.parts.parallel.transforms.strategy import (
    SHARDED_GRADIENTS,
    Strategy,
    plan_strategy,
    rewrite,
)
from heteroplace.relay.tasks.network import Network


def strategy_of(options: ShardOptions, degrees: Degrees) -> Strategy:
    """Return the strategy of some degrees, the rest being as the options say."""
    zero = options.zero if degrees.data > 1 else 0
    at_end = options.weight_gradients == END
    return Strategy(degrees, options.schedule, zero, options.recompute_every, options.cuts, at_end)


def _strategies(options: ShardOptions, degrees: Degrees) -> list[Strategy]:
    """The strategies of some degrees, of which the fastest that fits is taken."""
    first = strategy_of(options, degrees)
    may_be_late = options.is_training and first.zero < SHARDED_GRADIENTS
    if options.weight_gradients == AUTO and may_be_late and degrees.micro_batches > 1:
        return [first, replace(first, sums_at_end=True)]
    return [first]


@dataclass(frozen=True)
class PlannedStrategy:
    """A plan that has no costs yet."""

    strategy: Strategy
    sharded: ShardedGraph
    """Of one replica, before the strategy's rewrites."""
    cluster: Cluster
    """Its devices take batches of what the plan sums at once."""
    plan: Plan
    compiled: CompiledNetwork
    timed: PlanToTime
    mod: tvm.IRModule
    state: Mapping[str, np.ndarray]
    memories: Mapping[str, TaskMemory] | None


def planned_strategies(
    source: ModelSource, degrees: Degrees, cluster: Cluster, options: ShardOptions
) -> list[PlannedStrategy]:
    """Return a plan for each strategy that the options allow, all of one graph.

    Raises
    ------
    ShardingError, ClusterError
        As `sharding.plan.plan_model`.
    MissingCostError
        Costs are to be measured on devices that are not in this machine.
    """
    check_degrees(source, degrees, cluster, options)
    strategies = _strategies(options, degrees)
    first = strategies[0]
    rows = degrees.rows(options.batch)
    key = degrees.tensor, rows, options.batch
    network, state = source.network(*key), source.state(*key)
    assert network.network is not None  # weights are bound, or state
    is_measured = options.costs == MEASURE
    if is_measured:
        check_measurable(cluster, candidate_names(cluster, options))
    sharded = source.with_scratch(*key, cluster) if is_measured else network.sharded
    mod = network.network.mod
    compiled = CompiledNetwork.of(Network(rewrite(sharded, first).graph, mod, state=state))
    memories = source.task_memories(*key, cluster) if is_measured else None
    base = shorter_plan(compiled, sharded, first, cluster, options)
    planned: list[PlannedStrategy] = []
    for strategy in strategies:
        own = _taking_sums(cluster, strategy)
        joinable = source.joinable(*key) if strategy.sums_at_end else ()
        _, plan = plan_strategy(sharded, strategy, own, rank_ids(cluster, options), joinable)
        timed = plan_to_time(base, plan, own, strategy)
        model = (mod, state, memories)
        this = PlannedStrategy(strategy, sharded, own, plan, compiled, timed, *model)
        if not planned or (plan.steps != planned[0].plan.steps and _fits(this)):
            planned.append(this)
    return planned


def _fits(planned: PlannedStrategy) -> bool:
    """Whether the program of a plan fits into all memories, whatever its tasks take."""
    graph, cluster = planned.compiled.graph, planned.cluster
    sizes = cluster.devices[0].batch_sizes
    costs = build_table(graph, cluster, lambda *_: Cost.given(1), sizes)
    solution = Solution(graph, cluster, costs, planned.plan, 0, 0)
    peaks = program_peaks(solution, planned.mod, planned.memories)
    return all(peak <= at.bytes for peak, at in zip(peaks, cluster.memories, strict=True))


def _taking_sums(cluster: Cluster, strategy: Strategy) -> Cluster:
    """The cluster, whose devices take what a strategy sums at once as a batch."""
    micro_batches = strategy.degrees.micro_batches
    if not strategy.sums_at_end or micro_batches == 1:
        return cluster
    devices = (replace(device, batch_sizes=(1, micro_batches)) for device in cluster.devices)
    return replace(cluster, devices=tuple(devices))


def shorter_plan(
    compiled: CompiledNetwork,
    sharded: ShardedGraph,
    strategy: Strategy,
    cluster: Cluster,
    options: ShardOptions,
) -> PlanToTime:
    """Return a run in which a microbatch takes what it takes in that of a strategy."""
    short = replace(strategy, degrees=shorter(strategy.degrees), sums_at_end=False)
    _, plan = plan_strategy(sharded, short, cluster, rank_ids(cluster, options))
    return PlanToTime(compiled, plan, cluster, strategy.degrees.micro_batches)


def plan_to_time(base: PlanToTime, plan: Plan, cluster: Cluster, strategy: Strategy) -> PlanToTime:
    """Return the run that tells the costs of a plan, of which `base` is the shorter one."""
    if not strategy.sums_at_end:
        return base
    return replace(base, plan=plan, cluster=cluster, beside=base)


def check_degrees(
    source: ModelSource, degrees: Degrees, cluster: Cluster, options: ShardOptions
) -> None:
    """Raise ShardingError or ClusterError at once if degrees cannot be: before anything slow."""
    rows = degrees.rows(options.batch)
    if rows % source.own_rows:
        source.network(1, rows, options.batch)  # which says what is wrong
    rank_devices(cluster, degrees, rank_ids(cluster, options))
