"""A workload -> one placement of all its entries, a plan for each, and a bound for their sum."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from heteroplace.entries import load_entry
from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.units import format_bytes
from heteroplace.solve.bounds.quick import any_plan_bound
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.feasibility import check_possible
from heteroplace.solve.problem import MAX_CPSAT_TASKS, SolveOptions
from heteroplace.solve.workload.placed_entry import (
    PlacedEntry,
    WorkloadEnd,
    fit_together,
    sites_of,
    total_ns,
)
from heteroplace.solve.workload.workload import Workload
from heteroplace.solve.workload.workload_bound import WorkloadBound, workload_bound
from heteroplace.solve.workload.workload_plans import LeadingPlan, leading_plans, plan_entries
from heteroplace.solve.workload.workload_search import (
    Placed,
    WorkloadSearch,
    all_placements,
    best_of_starts,
    splits,
)
from heteroplace.solve.workload.workload_state import WorkloadTimes, held_bytes

_BOUND_SHARE, _LEADS_SHARE, _SEARCH_SHARE = 0.15, 0.4, 0.5
"""Of the time that is left then; the rest is for the plans of the entries."""
_EXACT_SHARE = 0.7
"""Of that rest, for the exact solver of small workloads."""
_PROVE = "heteroplace.solve.workload.exact_workload:prove_workload"
_PROVERS = ("auto", "cpsat")
"""Solvers of the entries after which all entries are solved exactly."""
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
    note: str = ""
    """Why the exact solver gave up, if it did."""

    @property
    def gap(self) -> float:
        """(objective - bound) / objective; 0 is proven optimal."""
        return (self.objective_ns - self.bound_ns) / max(1, self.objective_ns)


@dataclass(frozen=True)
class SolvedWorkload:
    """A workload with its result, and how it was solved."""

    workload: Workload
    result: WorkloadResult
    options: SolveOptions
    solver: str


def solve_workload(
    workload: Workload,
    options: SolveOptions,
    *,
    solver: str = "auto",
    earlier: WorkloadResult | None = None,
) -> WorkloadResult:
    """Place all entries of a workload.

    First the memory of each task is searched, for all entries at once; of few placements all are
    tried. Then a solver chooses the devices in each memory and the order. The search also begins at
    plans that the solver makes for one entry alone, whose placement the others follow. A small
    workload is then solved exactly, from that result, unless another solver than `auto` is named.

    Parameters
    ----------
    options
        `time_limit_s` is for all of it. With `iterations` the search makes as many moves.
    solver
        Makes the plans of the entries.
    earlier
        A result for the same entries, such as with less memory: the search also begins there, and
        what is returned is not worse if it fits.

    Raises
    ------
    InfeasibleError
        A task can be nowhere, all weights are more than all memories hold, or it is proven that
        no placement of a small workload fits.
    SolverLimitError
        No placement was found that fits.
    """
    begin = time.perf_counter()
    deadline = Deadline.after(options.time_limit_s, begin)
    for entry in workload.entries:
        check_possible(entry.problem)
    times = WorkloadTimes(workload)
    bound = workload_bound(times, deadline.part(_BOUND_SHARE, options.iterations))
    placed, leads = _searched(times, bound, options, solver, earlier, deadline)
    alone = sum(each.calls * any_plan_bound(each.problem).ns for each in workload.entries)
    end = WorkloadEnd(None, max(bound.bound_ns, alone), _lacks(workload) > 0)
    is_small = _is_provable(workload, solver)
    if placed.value.excess_bytes == 0:
        share = 1 - _EXACT_SHARE if is_small else 1.0
        until = deadline.part(share, options.iterations)
        end = replace(end, entries=plan_entries(times, placed.sites, options, solver, until, leads))
    if earlier is not None and fit_together(times, earlier.entries):
        plans = [each for each in (end.entries, earlier.entries) if each is not None]
        end = replace(end, entries=min(plans, key=total_ns))
    is_open = end.entries is None or total_ns(end.entries) > end.bound_ns
    if is_small and is_open and not end.is_infeasible and not deadline.is_over():
        end = load_entry(_PROVE)(times, end.entries, end.bound_ns, options, deadline)
    if end.entries is None:
        raise _no_placement(times, placed, is_proven=end.is_infeasible)
    return _result(workload, end, time.perf_counter() - begin)


def _searched(
    times: WorkloadTimes,
    bound: WorkloadBound,
    options: SolveOptions,
    solver: str,
    earlier: WorkloadResult | None,
    deadline: Deadline,
) -> tuple[Placed, list[LeadingPlan]]:
    """The best placements that were tried, all of them or those of the search; and plans of one
    entry that led there."""
    every = all_placements(times)
    if every:
        return best_of_starts(times, every), []
    until = deadline.part(_LEADS_SHARE, options.iterations)
    leads = leading_plans(times, options, solver, until)
    starts = [*splits(times), *bound.samples, *(lead.sites for lead in leads)]
    if earlier is not None:
        starts.append(sites_of(times.workload, earlier.entries))
    placed = best_of_starts(times, starts)
    penalty = _PENALTY * max(max(bound.prices), _least_price(times, placed))
    search = WorkloadSearch(times, placed, options.seed, penalty)
    until = deadline.part(_SEARCH_SHARE, options.iterations)
    return search.run(until, options.iterations), leads


def _is_provable(workload: Workload, solver: str) -> bool:
    """Whether CP-SAT may take all entries at once: a solver that is named makes plans alone."""
    count = sum(len(entry.problem.graph.tasks) for entry in workload.entries)
    return solver in _PROVERS and 0 < count <= MAX_CPSAT_TASKS


def _result(workload: Workload, end: WorkloadEnd, wall_s: float) -> WorkloadResult:
    entries = end.entries or ()
    pairs = list(zip(workload.entries, entries, strict=True))
    weights, _ = workload.weight_use([entry.placement(each.plan) for entry, each in pairs])
    values = np.sum([held_bytes(entry, each.plan) for entry, each in pairs], axis=0)
    objective_ns = total_ns(entries)
    return WorkloadResult(
        entries,
        objective_ns,
        min(end.bound_ns, objective_ns),
        tuple(weights.tolist()),
        tuple(values.tolist()),
        wall_s,
        end.note,
    )


def _least_price(times: WorkloadTimes, start: Placed) -> float:
    """A price at which the smallest memory with devices is worth all of the time."""
    sizes = [int(times.workload.memory_bytes[memory]) for memory in times.memories]
    return start.value.objective_ns / max(1, min(sizes, default=1))


def _lacks(workload: Workload) -> int:
    """Bytes that all memories lack for the weights alone; negative: they have more."""
    return workload.all_weight_bytes - int(workload.memory_bytes.sum())


def _no_placement(times: WorkloadTimes, placed: Placed, *, is_proven: bool) -> InfeasibleError:
    workload = times.workload
    sizes = ", ".join(
        f"{memory.name} has {format_bytes(memory.bytes)}" for memory in workload.cluster.memories
    )
    names = ", ".join(repr(entry.name) for entry in workload.entries)
    kind = InfeasibleError if is_proven else SolverLimitError
    return kind(
        f"entries {names} on cluster {workload.cluster.name!r}: no placement of all of them that "
        f"fits was {'possible' if is_proven else 'reached'}. Weights and state take "
        f"{format_bytes(workload.all_weight_bytes)}, each once; {sizes}. The best placement lacks "
        f"{format_bytes(placed.value.excess_bytes)}. Give a memory more room, or place fewer "
        f"entries"
    )
