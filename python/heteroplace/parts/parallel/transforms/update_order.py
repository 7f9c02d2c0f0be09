"""A pass of a stage + the updates of its weights -> their order.

An update comes as soon as all that it waits for has run: what it reads, and all who read what it
replaces. Gradients are in caches then, and are not kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from heteroplace.parts.parallel.transforms.sharded import ShardedGraph


def with_updates(
    sharded: ShardedGraph,
    tasks: Sequence[int],
    updates: Collection[int],
    later: Collection[int] = (),
    are_held: bool = False,
) -> list[int]:
    """Return the tasks in their order, each update behind what it waits for.

    Parameters
    ----------
    tasks
        Of the pass, in the order in which they run.
    updates
        Tasks that run once, behind all microbatches.
    later
        Tasks behind the pass: updates that wait for them are left out.
    are_held
        Whether updates come only when what the next ones read has been made: members of a sum then
        do not wait for each other, and one more gradient is kept.
    """
    left = {*tasks, *later, *updates}
    waits = {update: _before(sharded, update) & left for update in updates}
    blocked: dict[int, list[int]] = defaultdict(list)
    for update, others in waits.items():
        for other in others:
            blocked[other].append(update)
    order: list[int] = []

    def run_behind(task: int) -> None:
        for update in blocked[task]:
            waits[update].remove(task)
            if not waits[update]:
                order.append(update)
                run_behind(update)

    for update in [update for update in updates if not waits[update]]:
        order.append(update)
        run_behind(update)
    held: int | None = None
    for task in tasks:
        order.append(task)
        done: int | None = task
        if are_held and any(waits[update] == {task} for update in blocked[task]):
            done, held = held, task
        if done is not None:
            run_behind(done)
    if held is not None:
        run_behind(held)
    return order


def _before(sharded: ShardedGraph, update: int) -> set[int]:
    """What must have run before an update: what it reads, and readers of what it replaces."""
    graph = sharded.graph
    ancestors = set(graph.predecessors[update])
    for tensor in graph.task_outputs[update]:
        if tensor in graph.state_of:
            readers = graph.tensors[graph.state_of[tensor]].consumers
            ancestors.update(readers)
            # A copy of a weight is made when the first of its readers runs.
            # (An update runs once too, and what reads its result does not read this state.)
            once = (reader for reader in readers if sharded.once[reader])
            copies = [reader for reader in once if not sharded.is_update[reader]]
            ancestors.update(task for copy in copies for task in graph.successors[copy])
    return ancestors - {update}
