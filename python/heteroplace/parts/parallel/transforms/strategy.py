"""A sharded graph + a strategy -> the graph that it makes of it, and its plan.

All rewrites in their order: recomputation first, so that what runs again reads what backward passes
read; then sums over replicas, or ZeRO, so that what runs again reads their copies of weights.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from heteroplace.model.cluster import Cluster
from heteroplace.model.plan import Plan
from heteroplace.parts.parallel.transforms.assemble import assemble
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.recompute import recompute
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph
from heteroplace.parts.parallel.transforms.zero import shard_states

SHARDED_GRADIENTS = 2
"""The least level of ZeRO at which a replica keeps its share of the gradients only."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """How one network is run by several devices."""

    degrees: Degrees
    schedule: str = "1f1b"
    """A name in `schedules.SCHEDULES`."""
    zero: int = 0
    """Level of ZeRO, 0 to 3; of a training step on several replicas."""
    recompute_every: int = 0
    """Layers that are computed again together before their backward passes; 0: none are."""
    cuts: tuple[int, ...] | None = None
    """The first layer of each stage but the first one; None: equal stages."""
    sums_at_end: bool = False
    """Gradients are summed over all microbatches at once, behind the last backward pass of their
    stage: what they are sums of is kept until then."""


def rewrite(sharded: ShardedGraph, strategy: Strategy) -> ShardedGraph:
    """Return the graph that runs under a strategy; its lanes must be those of the strategy.

    Raises
    ------
    ShardingError
        As `recompute` and `shard_states`.
    """
    if sharded.is_training and strategy.recompute_every:
        cuts = strategy.degrees.pipeline if strategy.cuts is None else strategy.cuts
        sharded = recompute(sharded, strategy.recompute_every, cuts)
    return shard_states(sharded, strategy.zero, strategy.degrees.data)


def plan_strategy(
    sharded: ShardedGraph,
    strategy: Strategy,
    cluster: Cluster,
    devices: Sequence[int] | None = None,
    joinable: Collection[str] = (),
) -> tuple[ShardedGraph, Plan]:
    """Return the rewritten graph and its plan.

    Parameters
    ----------
    joinable
        Names of the tasks that can add up several microbatches at once.

    The first stage, for which no other waits, updates weights as soon as their gradients are
    complete; with ZeRO of level 2 or 3 all do, so that gradients need not be kept. Else, with
    several replicas, they are held until the next one's are.

    Raises
    ------
    ShardingError, ClusterError
        As `rewrite` and `assemble`.
    """
    rewritten = rewrite(sharded, strategy)
    stages = range(strategy.degrees.pipeline)
    shards_gradients = strategy.zero >= SHARDED_GRADIENTS
    plan = assemble(
        rewritten,
        cluster,
        strategy.degrees,
        strategy.schedule,
        devices,
        strategy.cuts,
        joinable if strategy.sums_at_end else (),
        early_updates=stages if shards_gradients else stages[:1],
        holds_updates=not shards_gradients,
    )
    return rewritten, plan
