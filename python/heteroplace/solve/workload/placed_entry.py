"""What solvers of a workload make: the plan of each entry, and how far they have come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heteroplace.model.plan import Plan
from heteroplace.native.core_arrays import IntArray
from heteroplace.solve.workload.workload import Workload
from heteroplace.solve.workload.workload_state import WorkloadTimes, held_bytes


@dataclass(frozen=True)
class PlacedEntry:
    """The plan of one entry."""

    name: str
    calls: int
    plan: Plan
    objective_ns: int
    """Its makespan by the simulator."""


def total_ns(entries: Sequence[PlacedEntry]) -> int:
    """Return the sum over the entries of calls times makespan."""
    return sum(entry.calls * entry.objective_ns for entry in entries)


@dataclass(frozen=True)
class WorkloadEnd:
    """How far the solvers of a workload have come."""

    entries: tuple[PlacedEntry, ...] | None
    """The best plans that fit together; None: there are none so far."""
    bound_ns: int
    """No placement of all entries takes less."""
    is_infeasible: bool = False
    """It is proven that no placement fits."""
    note: str = ""
    """Why the exact solver gave up, if it did."""


def sites_of(workload: Workload, entries: Sequence[PlacedEntry]) -> tuple[IntArray, ...]:
    """Return for each entry the memory of each task."""
    pairs = zip(workload.entries, entries, strict=True)
    return tuple(entry.memories(each.plan) for entry, each in pairs)


def fit_together(times: WorkloadTimes, entries: Sequence[PlacedEntry]) -> bool:
    """Say whether memory holds all plans, by the rule of `WorkloadTimes.value`."""
    pairs = zip(times.workload.entries, entries, strict=True)
    held = [held_bytes(entry, each.plan) for entry, each in pairs]
    return times.excess(sites_of(times.workload, entries), held) == 0
