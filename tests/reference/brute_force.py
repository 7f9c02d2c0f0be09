"""The optimum by trying every placement and every order of runs and copies."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Plan, Run, Step
from tests.reference.live_memory import reference_peaks
from tests.reference.placements import copies_of, fits, is_allowed
from tests.reference.simulator import route_resources


def optimal_makespan(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, *, is_static: bool = False
) -> int | None:
    """Least makespan over all placements and orders whose copies leave the tensor's home over
    `Cluster.route`; None if nothing is feasible. For a handful of tasks only. `is_static`: of those
    that fit by the static rule of memory."""
    best: int | None = None
    devices = range(len(cluster.devices))
    for placement in itertools.product(devices, repeat=len(graph.tasks)):
        copies = needed_copies(graph, cluster, costs, placement)
        if copies is None or (is_static and not fits(graph, cluster, placement)):
            continue
        found = _best_order(graph, cluster, costs, placement, copies, best)
        if found is not None and (best is None or found < best):
            best = found
    return best


def needed_copies(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, placement: tuple[int, ...]
) -> list[tuple[int, int, int]] | None:
    """(tensor, src, dst) of every copy the placement needs; None if it is not allowed."""
    if not is_allowed(graph, cluster, costs, placement):
        return None
    copies = copies_of(graph, cluster, placement)
    if not all(cluster.is_reachable(src, dst) for _, src, dst in copies):
        return None
    return copies


@dataclass(frozen=True)
class Job:
    """A run or a copy of a placement."""

    duration: int
    resources: frozenset[object]
    needs: tuple[int, ...]
    """Jobs that end before it starts, all of smaller index."""
    step: Step


def jobs_of(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    placement: tuple[int, ...],
    copies: list[tuple[int, int, int]],
) -> list[Job]:
    """All runs and copies, what is needed before what needs it."""
    jobs: list[Job] = []
    run_of: dict[int, int] = {}
    copy_of: dict[tuple[int, int], int] = {}

    def add_copies(producer: int | None) -> None:
        for tensor, src, dst in copies:
            if graph.tensors[tensor].producer != producer:
                continue
            route = cluster.route(src, dst)
            time_ns = cluster.transfer_ns(route, graph.tensors[tensor].bytes)
            needs = () if producer is None else (run_of[producer],)
            copy_of[tensor, dst] = len(jobs)
            resources = frozenset(route_resources(cluster, route))
            jobs.append(Job(time_ns, resources, needs, Copy(tensor, src, dst, route)))

    add_copies(None)
    for task, device_id in enumerate(placement):
        device = cluster.devices[device_id]
        needs = []
        for tensor in graph.task_inputs[task]:
            producer = graph.tensors[tensor].producer
            if (tensor, device.memory) in copy_of:
                needs.append(copy_of[tensor, device.memory])
            elif producer is not None:
                needs.append(run_of[producer])
        run_ns = costs.run_ns(task, device_id)
        assert run_ns is not None
        run_of[task] = len(jobs)
        step = Run(task, device_id)
        jobs.append(Job(run_ns, frozenset(device.units), tuple(needs), step))
        add_copies(task)
    return jobs


def _fits_by_lifetime(
    graph: TaskGraph, cluster: Cluster, jobs: list[Job], done: dict[int, int]
) -> bool:
    """Whether the jobs, in the order in which they are done, fit the memories."""
    plan = Plan("", "", tuple(jobs[index].step for index in done), "brute force")
    times = [(finish - jobs[index].duration, finish) for index, finish in done.items()]
    peaks = reference_peaks(graph, cluster, plan, times)
    return all(peak <= m.bytes for (peak, *_), m in zip(peaks, cluster.memories, strict=True))


def _best_order(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    placement: tuple[int, ...],
    copies: list[tuple[int, int, int]],
    limit: int | None,
) -> int | None:
    """Depth-first search over the orders in which steps start, as early as they can.

    Orders whose starts go back in time are left out: sorting a best schedule by start, and moving
    its steps to the left again, ends at one that is as good and in order. Prunes at `limit`.
    """
    jobs = jobs_of(graph, cluster, costs, placement, copies)
    after = [0] * len(jobs)
    for index in range(len(jobs) - 1, -1, -1):
        for need in jobs[index].needs:
            after[need] = max(after[need], jobs[index].duration + after[index])
    best = limit
    is_found = False
    is_ample = fits(graph, cluster, placement)

    def extend(done: dict[int, int], free: dict[object, int], since: int, latest: int) -> None:
        nonlocal best, is_found
        if best is not None and latest >= best:
            return
        if len(done) == len(jobs):
            if not is_ample and not _fits_by_lifetime(graph, cluster, jobs, done):
                return
            best, is_found = latest, True
            return
        for index, job in enumerate(jobs):
            if index in done or any(need not in done for need in job.needs):
                continue
            start = max((done[need] for need in job.needs), default=0)
            start = max([start, *(free.get(resource, 0) for resource in job.resources)])
            finish = start + job.duration
            if start < since or (best is not None and finish + after[index] >= best):
                continue
            occupied = {**free, **dict.fromkeys(job.resources, finish)}
            extend({**done, index: finish}, occupied, start, max(latest, finish))

    extend({}, {}, 0, 0)
    return best if is_found else None
