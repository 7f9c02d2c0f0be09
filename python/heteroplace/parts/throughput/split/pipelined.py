"""Several items in equal batches, one behind the other, over the placement of least time per batch.

Where there are many items, what counts is the time from one to the next: the placement is that of
the solver `throughput`, for batches of a size that promises much, and its steps are dispatched
(`batched/dispatch.py`). Beside MILP-SPLIT (DiviML IV), whose barriers between modules cost more the
longer the chain is; a batch of a task need not be the only one on its device here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.cost import Cost, TableBuilder
from heteroplace.model.plan import Step
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.parts.throughput.batched.dispatch import dispatched
from heteroplace.parts.throughput.steady_state.throughput_solver import (
    ThroughputSolver,
    find_throughput,
)
from heteroplace.solve.deadline import NEVER, Deadline, TimeUpError
from heteroplace.solve.problem import Problem, SolveOptions

MAX_STEPS = 200_000
"""Of all batches, runs alone: more take seconds to be dispatched."""
STEPS_PER_S = 50_000
"""Runs that are surely dispatched in a second: sizes with more are not begun."""
MAX_SIZES = 2
"""Batch sizes that are tried, those that promise the shortest makespan."""
_SOLVE_SHARE = 0.4
"""Of the time that is left, for the placement; the rest is for dispatching and the next size."""
MIN_TO_PROVE_S = 0.5
"""Time of a placement from which on programmes are solved for it: they overrun less."""
_THROUGHPUT = "throughput"
_ITERATIONS_SHARE = 8
"""Of a budget in iterations each size has one part in so many."""


def pipelined(
    problem: Problem, options: SolveOptions, deadline: Deadline
) -> Iterator[tuple[int, tuple[Step, ...]]]:
    """Yield (batch size, steps) that serve `options.items`; memory is the caller's to check.

    Nothing where no size divides the items into two batches or more, or all take too long.
    """
    iterations = options.iterations
    until = deadline if iterations is None else NEVER
    share = _SOLVE_SHARE if iterations is None else 1.0
    most = int(min(MAX_STEPS, STEPS_PER_S * until.left_s()))
    for size in promising_sizes(problem, options.items, most):
        if until.is_over():
            return
        options_of_batch = replace(
            options,
            objective=_THROUGHPUT,
            items=1,
            progress=None,
            time_limit_s=max(1e-3, share * deadline.left_s()),
            iterations=None if iterations is None else max(1, iterations // _ITERATIONS_SHARE),
        )
        has_time = iterations is not None or options_of_batch.time_limit_s >= MIN_TO_PROVE_S
        solve = ThroughputSolver().solve if has_time else find_throughput
        try:
            result = solve(batch_problem(problem, size), options_of_batch)
            steps = dispatched(problem, result.plan.steps, options.items, size, until)
        except (InfeasibleError, SolverLimitError):
            continue
        except TimeUpError:
            return
        yield size, steps
        if result.status == "interrupted":
            raise KeyboardInterrupt


def promising_sizes(problem: Problem, items: int, max_steps: int = MAX_STEPS) -> list[int]:
    """Return the batch sizes to try, best first: their batches at the least mean load of all
    devices, and the critical path of one. Those with more than `max_steps` runs are left out."""
    promised = []
    for size, run_ns in zip(problem.costs.batches, problem.native.batch_run_ns, strict=True):
        count = items // size
        is_possible = (run_ns != IMPOSSIBLE).any(axis=1)
        if items % size or count < 2 or count * len(run_ns) > max_steps or not is_possible.all():
            continue
        times = np.where(run_ns == IMPOSSIBLE, np.inf, np.maximum(run_ns, 1).astype(float))
        load_ns = float((1 / (1 / times).sum(axis=1)).sum())
        promised.append((count * load_ns + _path_ns(problem, times.min(axis=1)), size))
    return [size for _, size in sorted(promised)[:MAX_SIZES]]


def batch_problem(problem: Problem, size: int) -> Problem:
    """Return the problem of one batch as one item: its times, without the larger tensors."""
    graph, costs = problem.graph, problem.costs
    run_ns = problem.native.batch_run_ns[costs.batches.index(size)]
    # A device may run batches of this size, and none of one item.
    devices = tuple(replace(device, batch_sizes=(1,)) for device in problem.cluster.devices)
    cluster = replace(problem.cluster, devices=devices)
    builder = TableBuilder(graph.identities, cluster.identities)
    for task in range(len(graph.tasks)):
        for device in range(len(devices)):
            # A device may not take batches of a size that its costs have.
            is_refused = run_ns[task, device] == IMPOSSIBLE
            cost = (
                Cost.unsupported("no such batch") if is_refused else costs.cost(task, device, size)
            )
            builder.add(cost)
    return Problem(graph, cluster, builder.finalize(), problem.frees_tensors)


def _path_ns(problem: Problem, fastest_ns: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    finish: list[float] = []
    for task, before in enumerate(problem.graph.predecessors):
        start = max((finish[other] for other in before), default=0.0)
        finish.append(start + float(fastest_ns[task]))
    return max(finish, default=0.0)
