"""The list schedulers of several items: bMET, bGreedy and bHEFT (arXiv 2308.00127).

C++: src/parts/throughput/batched/batch_schedule.cc. "DiviML: A Module-based Heuristic for Mapping
Neural Networks onto Heterogeneous Platforms", sections II and V: all items of an op are split over
devices, one batch on each device at most: a composition. For each op the compositions with one, two
and three parts are tried, of all batch sizes that its devices run; the paper does not say which
are. What is minimised is the makespan of all items.
"""

from __future__ import annotations

import time
from typing import ClassVar

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.plan import Plan
from heteroplace.model.units import format_bytes
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.parts.throughput.bounds.batched import batched_lower_bound
from heteroplace.parts.throughput.native.core_batches import (
    BatchRule,
    schedule_batches,
    unserved_tasks,
)
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result
from heteroplace.terminal import listed

_MAX_NAMED = 5
"""Tasks that an error message names."""


class BatchedListSolver:
    """A rule by which the composition of each op is chosen. The plan serves `options.items`."""

    name: ClassVar[str]
    rule: ClassVar[BatchRule]
    takes_items = True

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`.

        Raises
        ------
        InfeasibleError
            The batch sizes of a task's devices do not add up to the items, or the plan overflows a
            memory, or a tensor has no way to a memory where it is read.
        SolverLimitError
            The time was up before all tasks were placed.
        """
        begin = time.perf_counter()
        deadline = Deadline.after(options.time_limit_s, begin)
        native, items = problem.native, options.items
        check_compositions(problem, items)
        try:
            schedule = schedule_batches(native, items, self.rule, deadline.left_s())
        except SolverLimitError as err:
            raise SolverLimitError(
                f"{self.name} had not placed {items} items of all {len(problem.graph.tasks)} tasks "
                f"on {len(problem.cluster.devices)} devices after {options.time_limit_s} s; give "
                f"it more time, or allow fewer devices or batch sizes"
            ) from err
        if schedule.violation:
            raise InfeasibleError(
                f"{_no_plan(self.name, problem, items)}. Serve fewer items at once, or give more "
                f"memory or links."
            )
        origin = f"{self.name} items {items}"
        digests = native.graph_digest, native.cluster_digest
        plan = Plan(*digests, schedule.steps, origin, (), items)
        bound = batch_bound(problem, items, deadline)
        return make_result(problem, plan, bound, self.name, time.perf_counter() - begin)


class BatchedMetSolver(BatchedListSolver):
    """bMET: each op in the batch and on the device of least run time per item.

    If that batch does not hold all items, the rest go to the next best pair of those with which the
    sizes add up, and so on; ties: fewer batches. Memory goes first: a composition that overflows is
    passed over. The batches are list-scheduled by upward rank.
    """

    name = "bmet"
    rule = "fastest"


class BatchedGreedySolver(BatchedListSolver):
    """bGreedy: in topological order, the composition that keeps the latency so far least.

    Ties, which are many, by the finish of the op, then by the sum of the finishes of its batches.
    """

    name = "bgreedy"
    rule = "latency"


class BatchedHeftSolver(BatchedListSolver):
    """bHEFT: by upward rank, the composition whose last batch finishes first.

    Ranks use the mean over devices of the time of all items at the best batch size, and mean
    transfers of all items.
    """

    name = "bheft"
    rule = "finish"


def check_compositions(problem: Problem, items: int) -> None:
    """Raise InfeasibleError, naming tasks, unless every task can serve so many items."""
    graph, cluster, native = problem.graph, problem.cluster, problem.native
    blocked = unserved_tasks(native, items)
    if not blocked:
        return
    faults = []
    for task in blocked:
        sizes = [
            f"{device.name}: "
            + (", ".join(map(str, _sizes_of(problem, task, device_id))) or "none")
            for device_id, device in enumerate(cluster.devices)
        ]
        faults.append(f"task {graph.tasks[task].name!r} ({'; '.join(sizes)})")
    raise InfeasibleError(
        f"with one batch on each device the batch sizes that are allowed and have costs do not add "
        f"up to {items} items for {listed(faults, at_most=_MAX_NAMED)}. Choose another number of "
        f"items, allow other batch sizes in the cluster, or give costs for them."
    )


def no_plan_error(solver: str, problem: Problem, options: SolveOptions) -> SolverLimitError:
    """Return the error of a search of several items that ended without a plan."""
    return SolverLimitError(
        f"{_no_plan(solver, problem, options.items)}. It had {options.time_limit_s} s; serve fewer "
        f"items at once, give more memory or links, or more time."
    )


def _no_plan(solver: str, problem: Problem, items: int) -> str:
    graph, cluster = problem.graph, problem.cluster
    capacities = listed(f"{m.name} has {format_bytes(m.bytes)}" for m in cluster.memories)
    return (
        f"{solver} found no plan for {items} items of graph {graph.name!r} on cluster "
        f"{cluster.name!r} that fits in memory and over its links (weights count once for each "
        f"device that runs the task, tensors once for each item); {capacities}"
    )


def _sizes_of(problem: Problem, task: int, device: int) -> list[int]:
    rows = problem.native.batch_run_ns[:, task, device]
    return [size for size, ns in zip(problem.costs.batches, rows, strict=True) if ns != IMPOSSIBLE]


def batch_bound(problem: Problem, items: int, deadline: Deadline = NEVER) -> int:
    """Return a makespan in ns that no plan for so many items is below, found without a solver."""
    return batched_lower_bound(problem, items, deadline=deadline).ns
