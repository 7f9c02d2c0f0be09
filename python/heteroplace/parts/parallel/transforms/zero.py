"""A sharded graph -> the same with weights, gradients or optimiser state owned by one replica each.

ZeRO (arXiv 1910.02054), which DistIR (arXiv 2111.05426, section 2) writes as explicit sends. What a
replica owns is a whole weight of a lane here, dealt out in turn, instead of a slice of each, so
that the rewrite needs no other kernels. Before ==> after, for weight `w` of the replica `r`, its
gradient `dw` and `sgd(w, dw) -> w'`, which replaces `w`:

    1   all_reduce(dw) -> dw.sum;  sgd(w, dw.sum) -> w' @ r;  broadcast(w') -> w'.all replaces w
    2   reduce(dw) -> dw.sum @ r;  sgd(w, dw.sum) -> w' @ r;  broadcast(w') -> w'.all replaces w
    3   reduce(dw) -> dw.sum @ r;  sgd(w, dw.sum) -> w' @ r replaces w, which is at r alone;
        broadcast(w) -> w.forward before the forward passes, and w.backward before the backward ones

So at 1 the optimiser's state beside a weight (momentum) is at its owner alone; at 2 the sum of its
gradient too; at 3 the weight too, and the others have it while passes of its layer run.
"""

from __future__ import annotations

from heteroplace.errors import ShardingError
from heteroplace.parts.parallel.transforms.builder import ShardedBuilder
from heteroplace.parts.parallel.transforms.replicas import (
    add_collective,
    add_sum,
    gradients,
    sum_over_replicas,
)
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph

LEVELS = (0, 1, 2, 3)


def shard_states(sharded: ShardedGraph, level: int, num_replicas: int) -> ShardedGraph:
    """Return the graph of a training step for several replicas, at a level of ZeRO.

    Level 0 is `sum_over_replicas`; for one replica nothing changes.

    Raises
    ------
    ShardingError
        There is no such level, or updates of several lanes read from each other.
    """
    if level not in LEVELS:
        raise ShardingError(f"ZeRO has levels {', '.join(map(str, LEVELS))}; got {level}")
    if num_replicas == 1 or not sharded.is_training:
        return sharded
    if level == 0:
        return sum_over_replicas(sharded)
    owner = _owners(sharded, num_replicas)
    builder = ShardedBuilder.of(sharded)
    for gradient in gradients(sharded):
        readers = [task for task in builder.readers(gradient) if task in owner]
        roots = {owner[task] for task in readers}
        if len(roots) > 1:
            raise ShardingError(
                f"ZeRO: the gradient {gradient!r} is read by the updates {', '.join(readers)}, "
                f"which different replicas own; take level 0"
            )
        kind = "all_reduce" if level == 1 else "reduce"
        for root in roots:
            add_sum(builder, kind, gradient, readers, root)
        if not roots and gradient in builder.outputs:
            add_sum(builder, "all_reduce", gradient, [])
    for task, root in owner.items():
        builder.tasks[task].replica = root
    for weight, update in _weights(builder, owner):
        root = owner[builder.tensors[update].producer or ""]
        if level == 3:
            _fetch_before_use(builder, weight, root, owner)
        else:
            task = add_collective(builder, "broadcast", update, f"{update}.all", [], root)
            (builder.updates[weight],) = builder.made_by(task)
    return builder.finalize()


def _owners(sharded: ShardedGraph, num_replicas: int) -> dict[str, int]:
    """The owner of each update: those of a lane are dealt out in turn, in graph order; updates that
    read from each other have one owner."""
    graph = sharded.graph
    count = [0] * sharded.num_lanes
    owners: dict[str, int] = {}
    late = [
        task
        for task in range(len(graph.tasks))
        if sharded.is_update[task] and not sharded.is_over_replicas(task)
    ]
    seen: set[int] = set()
    for first in late:
        if first in seen:
            continue
        group = _joined(sharded, first, seen)
        lane = sharded.lane[first]
        names = ", ".join(graph.tasks[task].name for task in group)
        if lane is None or any(sharded.lane[task] != lane for task in group):
            raise ShardingError(
                f"ZeRO: updates {names} read from each other and are of several lanes; expected "
                f"gradients and state of one lane; take level 0"
            )
        for task in group:
            owners[graph.tasks[task].name] = count[lane] % num_replicas
        count[lane] += 1
    return owners


def _joined(sharded: ShardedGraph, first: int, seen: set[int]) -> list[int]:
    """The updates that read from each other, directly or by others, in graph order."""
    graph = sharded.graph
    waiting, group = [first], []
    seen.add(first)
    while waiting:
        task = waiting.pop()
        group.append(task)
        for other in (*graph.predecessors[task], *graph.successors[task]):
            if sharded.is_update[other] and other not in seen:
                seen.add(other)
                waiting.append(other)
    return sorted(group)


def _weights(builder: ShardedBuilder, owner: dict[str, int]) -> list[tuple[str, str]]:
    """(state, update) of what tasks other than updates read."""
    return [
        (state, update)
        for state, update in builder.updates.items()
        if any(task not in owner for task in builder.readers(state))
    ]


def _fetch_before_use(
    builder: ShardedBuilder, weight: str, root: int, owner: dict[str, int]
) -> None:
    """Let forward and backward passes read copies that the owner gives."""
    for name, backward in (("forward", False), ("backward", True)):
        readers = [
            task
            for task in builder.readers(weight)
            if task not in owner and builder.tasks[task].backward == backward
        ]
        if readers:
            add_collective(
                builder, "broadcast", weight, f"{weight}.{name}", readers, root, backward
            )
