"""A workload -> one placement of all its entries, a plan for each, and a bound for their sum."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.model.units import format_bytes
from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.native.list import evaluate_order
from heteroplace.native.simulate import native_plan_of, simulate_steps
from heteroplace.solve.bounds.quick import any_plan_bound
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.feasibility import check_possible
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.solve.solvers import get_solver
from heteroplace.solve.workload.workload import Workload
from heteroplace.solve.workload.workload_bound import workload_bound
from heteroplace.solve.workload.workload_search import (
    Placed,
    Sites,
    WorkloadSearch,
    all_placements,
    best_of_starts,
    splits,
)
from heteroplace.solve.workload.workload_state import WorkloadTimes, value_bytes

_BOUND_SHARE, _SEARCH_SHARE = 0.25, 0.5
"""Of the time; the rest is for the schedules of the entries."""
_PENALTY = 2.0
"""Of a byte of excess, in prices of the bound."""


@dataclass(frozen=True)
class PlacedEntry:
    """The plan of one entry."""

    name: str
    calls: int
    plan: Plan
    objective_ns: int
    """Its makespan by the simulator."""
    devices: tuple[tuple[str, ...], ...]
    """[num_tasks]: names of the devices that each task was left: of one with weights or state those
    in the memory that was chosen for these."""


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
    tried. Then a solver chooses the devices of each memory and the order.

    Parameters
    ----------
    options
        `time_limit_s` is for all of it. With `iterations` the search makes as many moves.
    solver
        Makes the plans of the entries.
    starts
        Placements to begin with, beside those of `splits` and of the bound.

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
    placed = best_of_starts(times, every or [*starts, *splits(times), *bound.samples])
    if not every:
        penalty = _PENALTY * max(max(bound.prices), _least_price(times, placed))
        search = WorkloadSearch(times, placed, options.seed, penalty)
        share = _SEARCH_SHARE / (1 - _BOUND_SHARE)
        placed = search.run(deadline.part(share, options.iterations), options.iterations)
    if placed.value.excess_bytes:
        raise _no_placement(times, placed)
    entries, values = _planned(times, placed, options, solver, deadline)
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


def _planned(
    times: WorkloadTimes,
    placed: Placed,
    options: SolveOptions,
    solver: str,
    deadline: Deadline,
) -> tuple[tuple[PlacedEntry, ...], IntArray]:
    """Plans of the entries, and what their tensors take in each memory."""
    workload = times.workload
    weights, _ = times.weights(placed.sites)
    held = [each.time(own)[1] for each, own in zip(times.entries, placed.sites, strict=True)]
    entries = []
    for index, own in enumerate(placed.sites):
        others = sum((held[other] for other in range(len(held)) if other != index), 0 * weights)
        room = workload.memory_bytes - weights - others
        count = len(times.entries) - index
        seconds = deadline.part(1 / count, options.iterations).left_s()
        entry, held[index] = _plan_entry(
            times, index, own, room, replace(options, time_limit_s=max(0.05, seconds)), solver
        )
        entries.append(entry)
    return tuple(entries), np.sum(held, axis=0)


def _plan_entry(
    times: WorkloadTimes,
    index: int,
    sites: IntArray,
    room: IntArray,
    options: SolveOptions,
    solver: str,
) -> tuple[PlacedEntry, IntArray]:
    """The shorter of a solver's plan with the weights in the memories of `sites`, and the search's.

    Parameters
    ----------
    room
        [num_memories], bytes that its tensors may take.
    """
    each = times.entries[index]
    entry, placement = each.entry, each.placement(sites)
    native_plan = evaluate_order(entry.roomy, placement, each.order)
    restricted = _restricted(times, index, sites, room)
    names = [task.devices or () for task in restricted.graph.tasks]
    plan = entry.roomy.plan(native_plan.steps, "workload search")
    best = native_plan.makespan_ns, plan, native_plan
    try:
        result = get_solver(solver).solve(restricted, options)
        steps = result.plan.steps
        makespan = simulate_steps(entry.roomy, steps).makespan_ns
        if makespan < best[0]:
            best = makespan, result.plan, native_plan_of(entry.roomy, steps, makespan)
    except SolverLimitError:
        pass  # The search's own plan fits.
    makespan, plan, chosen = best
    plan = replace(plan, graph_digest=entry.problem.graph.digest())
    plan = replace(plan, cluster_digest=entry.problem.cluster.digest())
    held = value_bytes(entry, chosen, chosen.devices(len(sites)))
    return PlacedEntry(entry.name, entry.calls, plan, makespan, tuple(names)), held


def _restricted(times: WorkloadTimes, index: int, sites: IntArray, room: IntArray) -> Problem:
    """The problem of one entry whose weights stay in their memories, with what is left of them."""
    entry = times.workload.entries[index]
    graph, cluster, costs = entry.problem.graph, entry.problem.cluster, entry.problem.costs
    allowed = entry.roomy.run_ns != IMPOSSIBLE
    tasks = []
    for number, task in enumerate(graph.tasks):
        possible = allowed[number]
        if entry.weights[number]:
            possible = possible & (entry.device_memory == sites[number])
        names = tuple(cluster.devices[device].name for device in np.flatnonzero(possible))
        tasks.append(replace(task, devices=names))
    of_tasks = times.entries[index].task_bytes(sites)
    sizes = np.clip(of_tasks + room, 1, times.workload.memory_bytes).tolist()
    memories = tuple(
        replace(each, bytes=size) for each, size in zip(cluster.memories, sizes, strict=True)
    )
    restricted: TaskGraph = replace(graph, tasks=tuple(tasks))
    return Problem(restricted, replace(cluster, memories=memories), costs)
