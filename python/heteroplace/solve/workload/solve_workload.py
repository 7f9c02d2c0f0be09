"""A workload -> one placement of all its entries, a plan for each, and a bound for their sum."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.units import format_bytes
from heteroplace.solve.bounds.quick import any_plan_bound
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.feasibility import check_possible
from heteroplace.solve.problem import SolveOptions
from heteroplace.solve.workload.workload import Workload
from heteroplace.solve.workload.workload_bound import workload_bound
from heteroplace.solve.workload.workload_plans import (
    LeadingPlan,
    PlacedEntry,
    leading_plans,
    plan_entries,
)
from heteroplace.solve.workload.workload_search import (
    Placed,
    Sites,
    WorkloadSearch,
    all_placements,
    best_of_starts,
    splits,
)
from heteroplace.solve.workload.workload_state import WorkloadTimes

_BOUND_SHARE, _LEADS_SHARE, _SEARCH_SHARE = 0.15, 0.4, 0.5
"""Of the time that is left then; the rest is for the plans of the entries."""
_PENALTY = 2.0
"""Of a byte of excess, in prices of the bound."""


@dataclass(frozen=True)
class WorkloadResult:
    """A placement of all entries and how good it is known to be."""

    entries: tuple[PlacedEntry, ...]
    objective_ns: int
    """Sum over the entries of calls times makespan."""
    bound_ns: int
    """No placement of all entries takes less."""
    weight_bytes: tuple[int, ...]
    """For each memory what weights and state take, each once."""
    value_bytes: tuple[int, ...]
    """For each memory what tensors and workspaces of all entries take."""
    wall_s: float

    @property
    def gap(self) -> float:
        """(objective - bound) / objective; 0 is proven optimal."""
        return (self.objective_ns - self.bound_ns) / max(1, self.objective_ns)


def solve_workload(
    workload: Workload,
    options: SolveOptions,
    *,
    solver: str = "auto",
    starts: Sequence[Sites] = (),
) -> WorkloadResult:
    """Place all entries of a workload.

    First the memory of each task is searched, for all entries at once; of few placements all are
    tried. Then a solver chooses the devices in each memory and the order. The search also begins at
    plans that the solver makes for one entry alone, whose placement the others follow.

    Parameters
    ----------
    options
        `time_limit_s` is for all of it. With `iterations` the search makes as many moves.
    solver
        Makes the plans of the entries.
    starts
        Placements to begin with, beside those that are made here.

    Raises
    ------
    InfeasibleError
        A task can be nowhere, or all weights are more than all memories hold.
    SolverLimitError
        No placement was found that fits.
    """
    begin = time.perf_counter()
    deadline = Deadline.after(options.time_limit_s, begin)
    for entry in workload.entries:
        check_possible(entry.problem)
    times = WorkloadTimes(workload)
    bound = workload_bound(times, deadline.part(_BOUND_SHARE, options.iterations))
    every = all_placements(times)
    leads: list[LeadingPlan] = []
    is_small = bool(every)
    if not is_small:
        leads = leading_plans(
            times, options, solver, deadline.part(_LEADS_SHARE, options.iterations)
        )
        followed = [lead.sites for lead in leads]
        every = [*starts, *splits(times), *bound.samples, *followed]
    placed = best_of_starts(times, every)
    if not is_small:
        penalty = _PENALTY * max(max(bound.prices), _least_price(times, placed))
        search = WorkloadSearch(times, placed, options.seed, penalty)
        placed = search.run(deadline.part(_SEARCH_SHARE, options.iterations), options.iterations)
    if placed.value.excess_bytes:
        raise _no_placement(times, placed)
    entries, values = plan_entries(times, placed.sites, options, solver, deadline, leads)
    weights, _ = workload.weight_use(
        [
            np.array(each.plan.placement(len(entry.problem.graph.tasks)), dtype=np.int64)
            for each, entry in zip(entries, workload.entries, strict=True)
        ]
    )
    alone = sum(each.calls * any_plan_bound(each.problem).ns for each in workload.entries)
    return WorkloadResult(
        entries,
        sum(each.calls * each.objective_ns for each in entries),
        max(bound.bound_ns, alone),
        tuple(weights.tolist()),
        tuple(values.tolist()),
        time.perf_counter() - begin,
    )


def _least_price(times: WorkloadTimes, start: Placed) -> float:
    """A price at which the smallest memory with devices is worth all of the time."""
    sizes = [int(times.workload.memory_bytes[memory]) for memory in times.memories]
    return start.value.objective_ns / max(1, min(sizes, default=1))


def _no_placement(times: WorkloadTimes, placed: Placed) -> InfeasibleError:
    workload = times.workload
    weights = workload.all_weight_bytes
    room = int(workload.memory_bytes.sum())
    sizes = ", ".join(
        f"{memory.name} has {format_bytes(memory.bytes)}" for memory in workload.cluster.memories
    )
    names = ", ".join(repr(entry.name) for entry in workload.entries)
    kind = InfeasibleError if weights > room else SolverLimitError
    return kind(
        f"entries {names} on cluster {workload.cluster.name!r}: no placement of all of them that "
        f"fits was {'possible' if weights > room else 'reached'}. Weights and state take "
        f"{format_bytes(weights)}, each once; {sizes}. The best placement lacks "
        f"{format_bytes(placed.value.excess_bytes)}. Give a memory more room, or place fewer "
        f"entries"
    )
