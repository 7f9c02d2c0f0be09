"""HEFT (Topcuoglu et al. 2002) as a solver, and the device sets worth a try with it.

On devices that share units plain HEFT takes the fastest one again and again and so blocks the
others; trying each set of devices with disjoint units ("antichain") beside all of them mends that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.plan import Plan
from heteroplace.model.units import format_bytes
from heteroplace.native import baselines
from heteroplace.native.arrays import IMPOSSIBLE, IntArray
from heteroplace.native.schedule import Draft, NativeProblem
from heteroplace.solve.base import Problem, SolveOptions, SolveResult, make_result, report
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.overflow import excess_bytes
from heteroplace.solve.single import why_not

_MAX_SETS = 64
"""Device sets tried; a cluster with more has its first ones tried, in order of device ids."""
_REPAIR_EVALUATIONS = 20_000
"""Schedules tried to mend a plan that does not fit."""


class HeftSolver:
    """HEFT over all devices. A plan that overflows a memory is mended by a short search."""

    name = "heft"

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`."""
        start = time.perf_counter()
        check_possible(problem)
        draft = heft_draft(problem, range(len(problem.cluster.devices)), options.time_limit_s)
        if draft is None:
            raise no_placement_error(problem)
        found = draft

        def plan() -> Plan:
            return problem.native.plan(found.steps, "heft")

        report(options, self.name, start, draft.makespan_ns, plan=plan)
        bound = lower_bound(problem).ns
        return make_result(problem, plan(), bound, self.name, time.perf_counter() - start)


def heft_draft(problem: Problem, devices: Iterable[int], time_limit_s: float) -> Draft | None:
    """Return HEFT's plan with the given devices preferred; None if none was found that fits."""
    draft = problem.native.heft(devices)
    if draft.violation:
        draft = repair(problem, draft, time_limit_s)
    return None if draft.violation else draft


def repair(problem: Problem, draft: Draft, time_limit_s: float) -> Draft:
    """Return a plan that overflows less, by a short search from it and from Order-Place."""
    native = problem.native
    order_place = baselines.order_place(native, baselines.critical_path_order(native))
    return native.search(
        [draft, order_place],
        max_evaluations=_REPAIR_EVALUATIONS,
        time_limit_s=time_limit_s,
        seed=0,
        patience=_REPAIR_EVALUATIONS // 2,
        finds_bound=False,
    ).draft


def device_sets(problem: Problem) -> list[tuple[int, ...]]:
    """Return the sets of devices worth a HEFT: all, the maximal antichains, those of one memory.

    An antichain is a set of at least two devices no two of which share a unit.
    """
    cluster = problem.cluster
    everything = tuple(range(len(cluster.devices)))
    sets = [everything]
    groups = [everything]
    for memory in range(len(cluster.memories)):
        groups.append(tuple(d for d in everything if cluster.devices[d].memory == memory))
    for group in groups:
        sets.extend(found for found in _antichains(cluster.unit_ids, group) if len(found) > 1)
    return list(dict.fromkeys(sets))[:_MAX_SETS]


def _antichains(unit_ids: Sequence[Sequence[int]], devices: Sequence[int]) -> list[tuple[int, ...]]:
    """Maximal sets of devices without a common unit, at most _MAX_SETS of them."""
    clashes = {
        device: {other for other in devices if set(unit_ids[device]) & set(unit_ids[other])}
        for device in devices
    }
    found: list[tuple[int, ...]] = []

    def grow(chosen: tuple[int, ...], rest: Sequence[int]) -> None:
        if len(found) >= _MAX_SETS:
            return
        if not rest:
            if all(clashes[device] & set(chosen) for device in devices):
                found.append(chosen)
            return
        first, others = rest[0], rest[1:]
        grow((*chosen, first), [other for other in others if other not in clashes[first]])
        if clashes[first] - {first}:
            grow(chosen, others)

    grow((), list(devices))
    return found


def check_possible(problem: Problem) -> None:
    """Raise if some task can be nowhere, or alone fits in no memory.

    Raises
    ------
    InfeasibleError
        Every such task, with the reason for each device.
    """
    graph, cluster, native = problem.graph, problem.cluster, problem.native
    needs = _needs(native)
    is_allowed = native.run_ns != IMPOSSIBLE
    room = np.array([cluster.memories[d.memory].bytes for d in cluster.devices], dtype=np.int64)
    fits = (is_allowed & (needs[:, None] <= room)).any(axis=1)
    faults = []
    for task_id in np.flatnonzero(~fits).tolist():
        task = graph.tasks[task_id]
        allowed = np.flatnonzero(is_allowed[task_id]).tolist()
        if not allowed:
            reasons = "; ".join(
                f"{device.name}: {why_not(problem, task_id, device_id)}"
                for device_id, device in enumerate(cluster.devices)
            )
            faults.append(f"task {task.name!r} can run on no device: {reasons}")
            continue
        need = int(needs[task_id])
        outputs = need - task.weight_bytes - task.workspace_bytes
        capacities = ", ".join(
            f"{cluster.devices[device].name} has "
            f"{format_bytes(cluster.memories[cluster.devices[device].memory].bytes)}"
            for device in allowed
        )
        faults.append(
            f"task {task.name!r} needs {format_bytes(need)} (weights "
            f"{format_bytes(task.weight_bytes)}, outputs {format_bytes(outputs)}, workspace "
            f"{format_bytes(task.workspace_bytes)}) and no allowed device has it: {capacities}"
        )
    if faults:
        raise InfeasibleError(
            "; ".join(faults) + ". Allow another device, or give one of them more memory."
        )


def _needs(native: NativeProblem) -> IntArray:
    """For each task the bytes that it alone needs: weights, workspace and what it makes."""
    needs = native.weight_bytes + native.workspace_bytes
    is_made = native.producer >= 0
    np.add.at(needs, native.producer[is_made], native.tensor_bytes[is_made])
    return needs


def no_placement_error(problem: Problem, is_proven: bool = False) -> InfeasibleError:
    """Return the error for a graph whose tasks fit one by one but not together.

    Of type SolverLimitError unless it is proven that no placement exists.
    """
    graph, cluster = problem.graph, problem.cluster
    weights = sum(task.weight_bytes for task in graph.tasks)
    tensors = sum(tensor.bytes for tensor in graph.tensors)
    made = sum(tensor.bytes for tensor in graph.tensors if tensor.producer is not None)
    lack = weights + made - sum(memory.bytes for memory in cluster.memories)
    is_proven = is_proven or lack > 0
    found = "no placement fits" if is_proven else "no placement that fits was found"
    if lack > 0:
        found += f": all memories together lack {format_bytes(lack)}"
    capacities = ", ".join(f"{m.name} has {format_bytes(m.bytes)}" for m in cluster.memories)
    pairs = [
        f"{src.name} -> {dst.name}"
        for src_id, src in enumerate(cluster.memories)
        for dst_id, dst in enumerate(cluster.memories)
        if not cluster.is_reachable(src_id, dst_id)
    ]
    links = f" No links lead {', '.join(pairs)}." if pairs else ""
    pinned = sum(int((row != IMPOSSIBLE).sum() == 1) for row in problem.native.run_ns)
    advice = "Allow more devices, or give them more memory or links"
    return (InfeasibleError if is_proven else SolverLimitError)(
        f"graph {graph.name!r} on cluster {cluster.name!r}: {found}. It needs "
        f"{format_bytes(weights)} of weights and {format_bytes(tensors)} of tensors (each counted "
        f"once, copies beside); {capacities}.{_lacks(problem)}{links} {pinned} of "
        f"{len(graph.tasks)} tasks can run on one device only. {advice}"
        f"{'.' if is_proven else ', or more time.'}"
    )


def _lacks(problem: Problem) -> str:
    """What the memories lack for the plan that minds them least: HEFT's, unmended."""
    draft = problem.native.heft(range(len(problem.cluster.devices)))
    lacks = [
        f"{name!r} lacks {format_bytes(excess)}"
        for name, excess in excess_bytes(problem, draft).items()
    ]
    return f" For HEFT's placement {', '.join(lacks)}." if lacks else ""
