"""The device that a task takes when it is told to go where it cannot be."""

from __future__ import annotations

import numpy as np

from heteroplace.native.arrays import IMPOSSIBLE, IntArray
from heteroplace.solve.base import Problem


def nearest_allowed(problem: Problem) -> IntArray:
    """Return the device that stands in for each device, [num_tasks, num_devices].

    The device itself where the task can be there, else the fastest one where it can: for tasks of
    one `together` label the one with the least sum of run times. Ties: the lower device id. Every
    task needs an allowed device (see `heft.check_possible`).
    """
    run_ns = problem.native.run_ns
    total = np.where(run_ns == IMPOSSIBLE, np.inf, run_ns.astype(np.float64))
    members: dict[int, list[int]] = {}
    for task, group in enumerate(problem.native.task_group):
        if group >= 0:
            members.setdefault(group, []).append(task)
    for tasks in members.values():
        total[tasks] = total[tasks].sum(axis=0)
    fastest = total.argmin(axis=1)[:, None]
    devices = np.arange(run_ns.shape[1], dtype=np.int64)[None, :]
    nearest: IntArray = np.where(run_ns == IMPOSSIBLE, fastest, devices)
    return nearest
