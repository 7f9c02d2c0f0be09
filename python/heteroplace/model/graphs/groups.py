"""Steps of a plan -> groups: branches of a router that an executor does side by side.

Which branches are active is known in the run alone, so the cores of a memory that a plan gives
branches of a router to share them: each takes the next one, those with most rows first. What they
take together is the makespan of that list (Graham, "Bounds on Multiprocessing Timing Anomalies",
SIAM J. Appl. Math. 17, 1969, doi:10.1137/0117039), whichever core a branch has in the plan.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Load, Run, Step


def groups_of(
    graph: TaskGraph, cluster: Cluster, steps: Sequence[Step]
) -> tuple[tuple[int, ...], ...]:
    """Return the runs of each group, as positions in the plan.

    A group has rows of several branches of one router, on several cores of one memory or on one
    GPU. Branches whose weights are loaded in the run stay alone: one runs while the next one comes.
    """
    loaded = {task for step in steps if isinstance(step, Load) for task in step.tasks}
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, step in enumerate(steps):
        if not isinstance(step, Run) or step.guard is None or step.guard.when != "active":
            continue
        outputs = graph.task_outputs[step.task]
        if step.task in loaded or any(graph.tensors[one].buffer is None for one in outputs):
            continue
        members[step.guard.router, cluster.devices[step.device].memory].append(index)
    return tuple(tuple(group) for group in members.values() if _pays(cluster, steps, group))


def _pays(cluster: Cluster, steps: Sequence[Step], group: Sequence[int]) -> bool:
    """Whether there are two branches, and two cores or a GPU for them."""
    runs = [step for step in map(steps.__getitem__, group) if isinstance(step, Run)]
    branches = {run.guard.branch for run in runs if run.guard is not None}
    is_gpu = cluster.devices[runs[0].device].kind != "cpu"
    return len(branches) > 1 and (is_gpu or len(_cores(cluster, runs)) > 1)


def _cores(cluster: Cluster, runs: Sequence[Run]) -> set[int]:
    return {core for run in runs for core in cluster.devices[run.device].cores}


def grouped_ns(
    graph: TaskGraph,
    cluster: Cluster,
    steps: Sequence[Step],
    times: Sequence[int],
    groups: Sequence[Sequence[int]] | None = None,
) -> list[int]:
    """Return what steps take, those in a group of cores so that the group takes its makespan.

    Parameters
    ----------
    times
        What each step takes for itself, where the plan puts it, in ns; 0 if it is not made.
    groups
        As `groups_of` returns them; None: it is asked.
    """
    grouped = list(times)
    for group in groups_of(graph, cluster, steps) if groups is None else groups:
        runs = [step for step in map(steps.__getitem__, group) if isinstance(step, Run)]
        if cluster.devices[runs[0].device].kind != "cpu":
            continue
        cores = _cores(cluster, runs)
        branches: dict[int, int] = defaultdict(int)
        busy = dict.fromkeys(cores, 0)
        for index, run in zip(group, runs, strict=True):
            assert run.guard is not None
            own = cluster.devices[run.device].cores
            branches[run.guard.branch] += times[index] * len(own)
            for core in own:
                busy[core] += times[index]
        planned = max(busy.values())
        together = makespan_ns(list(branches.values()), len(cores))
        # Rounded so that all of a device add up to what they should.
        before: dict[int, int] = defaultdict(int)
        for index, run in zip(group, runs, strict=True) if planned else ():
            after = before[run.device] + times[index]
            grouped[index] = after * together // planned - before[run.device] * together // planned
            before[run.device] = after
    return grouped


def makespan_ns(times: Sequence[int], num_cores: int) -> int:
    """Return when the last of some cores is done if each takes the longest that is left.

    Examples
    --------
    >>> makespan_ns([3, 3, 2, 2, 2], 2)
    7
    """
    cores = [0] * num_cores
    for time in sorted(times, reverse=True):
        heapq.heapreplace(cores, cores[0] + time)
    return max(cores)
