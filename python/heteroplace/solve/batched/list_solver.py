"""What `bmet`, `bgreedy` and `bheft` have in common: several items -> plan of batches (DiviML, II).

All items of an op are split over devices, one batch on each device at most: a composition. For each
op the compositions with one, two and three parts are tried, of all batch sizes that its devices
run; the paper does not say which are. What is minimised is the makespan of all items.
"""

from __future__ import annotations

import time

from heteroplace.errors import InfeasibleError
from heteroplace.model.plan import Plan
from heteroplace.model.units import format_bytes
from heteroplace.native.arrays import IMPOSSIBLE
from heteroplace.native.list import BatchRule, batch_compositions, schedule_batches
from heteroplace.solve.bounds.batched import batched_lower_bound
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result

_MAX_NAMED = 5
"""Tasks that an error message names."""


def solve_batched(
    problem: Problem, options: SolveOptions, name: str, rule: BatchRule
) -> SolveResult:
    """Schedule `options.items` items by `rule`; `name` is the solver's.

    Raises
    ------
    InfeasibleError
        The batch sizes of a task's devices do not add up to the items, or the plan overflows a
        memory, or a tensor has no way to a memory where it is read.
    """
    begin = time.perf_counter()
    native, items = problem.native, options.items
    check_compositions(problem, items)
    native_plan = schedule_batches(native, items, rule)
    if native_plan.violation:
        capacities = ", ".join(
            f"{memory.name} has {format_bytes(memory.bytes)}" for memory in problem.cluster.memories
        )
        raise InfeasibleError(
            f"{name} found no plan for {items} items of graph {problem.graph.name!r} on cluster "
            f"{problem.cluster.name!r} that fits in memory and over its links (weights count once "
            f"for each device that runs the task, tensors once for each item); {capacities}. "
            f"Serve fewer items at once, or give more memory or links."
        )
    plan = Plan(
        native.graph_digest,
        native.cluster_digest,
        native_plan.steps,
        f"{name} items {items}",
        (),
        items,
    )
    bound = batch_bound(problem, items)
    return make_result(problem, plan, bound, name, time.perf_counter() - begin)


def check_compositions(problem: Problem, items: int) -> None:
    """Raise InfeasibleError, naming tasks, unless every task can serve so many items."""
    graph, cluster, native = problem.graph, problem.cluster, problem.native
    blocked = [
        task for task in range(len(graph.tasks)) if not batch_compositions(native, task, items)
    ]
    if not blocked:
        return
    faults = []
    for task in blocked[:_MAX_NAMED]:
        sizes = [
            f"{device.name}: "
            + (", ".join(map(str, _sizes_of(problem, task, device_id))) or "none")
            for device_id, device in enumerate(cluster.devices)
        ]
        faults.append(f"task {graph.tasks[task].name!r} ({'; '.join(sizes)})")
    more = f" and {len(blocked) - _MAX_NAMED} more" if len(blocked) > _MAX_NAMED else ""
    raise InfeasibleError(
        f"with one batch on each device the batch sizes that are allowed and have costs do not add "
        f"up to {items} items for {', '.join(faults)}{more}. Choose another number of items, "
        f"allow other batch sizes in the cluster, or give costs for them."
    )


def _sizes_of(problem: Problem, task: int, device: int) -> list[int]:
    rows = problem.native.batch_run_ns[:, task, device]
    return [size for size, ns in zip(problem.costs.batches, rows, strict=True) if ns != IMPOSSIBLE]


def batch_bound(problem: Problem, items: int) -> int:
    """Return a makespan in ns that no plan for so many items is below, found without a solver."""
    return batched_lower_bound(problem, items).ns
