"""Memories of all tasks of a workload -> plans of its entries; and plans of one entry as starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.plan import Step
from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import evaluate_order
from heteroplace.native.simulate import native_plan_of, simulate_steps
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.solve.solvers import get_solver
from heteroplace.solve.workload.placed_entry import PlacedEntry
from heteroplace.solve.workload.workload import resized
from heteroplace.solve.workload.workload_search import Sites, tensor_bytes, whole_placements
from heteroplace.solve.workload.workload_state import WorkloadTimes, value_bytes

_MIN_S = 0.05
"""Least time of a solver."""


@dataclass(frozen=True)
class LeadingPlan:
    """A plan of one entry alone, and the placements of all entries that follow from it."""

    entry: int
    steps: tuple[Step, ...]
    sites: Sites


def leading_plans(
    times: WorkloadTimes, options: SolveOptions, solver: str, deadline: Deadline
) -> list[LeadingPlan]:
    """Return plans of single entries within the memory that the tensors of all entries leave.

    Tasks of other entries go where the entry has their weights; those without weights go where
    their layer is. Entries that take more of the workload have more of the time.
    """
    reserve = tensor_bytes(times)
    pairs = zip(times.entries, whole_placements(times)[0], strict=True)
    loads = [each.entry.calls * each.time(own)[0] for each, own in pairs]
    plans: list[LeadingPlan] = []
    order = sorted(range(len(loads)), key=lambda index: -loads[index])
    for rank, index in enumerate(order):
        left = sum(loads[other] for other in order[rank:])
        share = loads[index] / left if left else 1.0
        seconds = max(_MIN_S, deadline.part(share, options.iterations).left_s())
        problem = times.entries[index].entry.problem
        sizes = np.maximum(times.workload.memory_bytes - reserve, 1).tolist()
        problem = replace(problem, cluster=resized(problem.cluster, sizes))
        try:
            result = get_solver(solver).solve(problem, replace(options, time_limit_s=seconds))
        except (InfeasibleError, SolverLimitError):
            continue  # Other starts may fit: they share weights, and tensors need not lie there.
        entry = times.entries[index].entry
        sites = _following(times, index, entry.memories(result.plan))
        plans.append(LeadingPlan(index, result.plan.steps, sites))
    return plans


def _following(times: WorkloadTimes, lead: int, lead_sites: IntArray) -> Sites:
    """The placements of all entries by that of one of them."""
    workload = times.workload
    place_of = np.full(len(workload.names), -1, dtype=np.int64)
    tasks, weights = workload.users[lead]
    place_of[weights] = lead_sites[tasks]
    num_memories = len(workload.memory_bytes)
    votes = np.zeros((times.num_layers, num_memories), dtype=np.int64)
    np.add.at(votes, (times.layers[lead], lead_sites), 1)
    of_layer = votes.argmax(axis=1)
    result = []
    for index, layers in enumerate(times.layers):
        own = of_layer[layers]
        tasks, weights = workload.users[index]
        is_placed = place_of[weights] >= 0
        own[tasks[is_placed]] = place_of[weights[is_placed]]
        result.append(times.possible(index, lead_sites if index == lead else own))
    return tuple(result)


def plan_entries(
    times: WorkloadTimes,
    sites: Sites,
    options: SolveOptions,
    solver: str,
    deadline: Deadline,
    leads: Sequence[LeadingPlan] = (),
) -> tuple[PlacedEntry, ...]:
    """Return plans of the entries.

    Weights stay in the memories of `sites`. Tasks without weights may be elsewhere.
    """
    workload = times.workload
    weights, _ = times.weights(sites)
    held = [each.time(own)[1] for each, own in zip(times.entries, sites, strict=True)]
    entries = []
    for index, own in enumerate(sites):
        others = sum((held[other] for other in range(len(held)) if other != index), 0 * weights)
        room = workload.memory_bytes - weights - others
        count = len(times.entries) - index
        seconds = max(_MIN_S, deadline.part(1 / count, options.iterations).left_s())
        alone = [lead.steps for lead in leads if lead.entry == index]
        limits = replace(options, time_limit_s=seconds)
        entry, held[index] = _plan_entry(times, index, own, room, limits, solver, alone)
        entries.append(entry)
    return tuple(entries)


def _plan_entry(
    times: WorkloadTimes,
    index: int,
    sites: IntArray,
    room: IntArray,
    options: SolveOptions,
    solver: str,
    earlier: Sequence[Sequence[Step]],
) -> tuple[PlacedEntry, IntArray]:
    """The shortest of the search's plan, of a solver's, and of earlier ones that fit.

    Parameters
    ----------
    room
        [num_memories], bytes that its tensors may take.
    """
    each = times.entries[index]
    entry = each.entry
    restricted = _restricted(times, index, sites, room)
    best = evaluate_order(entry.roomy, each.placement(sites), each.order)
    origin = "workload search"
    candidates = [(steps, f"{solver} alone") for steps in earlier]
    try:
        result = get_solver(solver).solve(restricted, options)
        candidates.append((result.plan.steps, result.plan.origin))
    except SolverLimitError:
        pass  # The search's own plan fits.
    for steps, name in candidates:
        makespan = simulate_steps(entry.roomy, steps).makespan_ns
        plan = native_plan_of(entry.roomy, steps, makespan)
        if makespan < best.makespan_ns and _fits(times, index, plan, sites, room):
            best, origin = plan, name
    chosen = replace(
        entry.roomy.plan(best.steps, origin),
        graph_digest=entry.problem.graph.digest(),
        cluster_digest=entry.problem.cluster.digest(),
    )
    held = value_bytes(entry, best, best.devices(len(sites)))
    return PlacedEntry(entry.name, entry.calls, chosen, best.makespan_ns), held


def _fits(
    times: WorkloadTimes, index: int, plan: NativePlan, sites: IntArray, room: IntArray
) -> bool:
    """Whether a plan has all weights in the memories of `sites`, and its tensors fit there."""
    entry = times.entries[index].entry
    devices = plan.devices(len(sites))
    memories = entry.device_memory[devices]
    has_weights = np.array([bool(weights) for weights in entry.weights])
    if (memories[has_weights] != sites[has_weights]).any():
        return False
    moved = np.zeros(len(room), dtype=np.int64)
    np.add.at(moved, memories, entry.own_bytes)
    np.subtract.at(moved, sites, entry.own_bytes)
    return bool((value_bytes(entry, plan, devices) + moved <= room).all())


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
    return Problem(replace(graph, tasks=tuple(tasks)), resized(cluster, sizes), costs)
