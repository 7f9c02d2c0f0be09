"""GETF: a linear programme chooses a group of devices for each task, ETF the device in the group.

C++: src/list/engine/ready_queue.cc (list::PlaceEarliest), with the real transfers, which the
programme leaves out. Su, Ren, Vardi, Wierman, "Communication-Aware Scheduling of
Precedence-Constrained Tasks on Related Machines", 2020 (arXiv 2004.14639).

Algorithm: devices slower than 1/m of the fastest of m devices are dropped, the others form groups
in which speeds differ by less than log m / log log m (`getf_groups.py`). The programme
(`getf_lp.py`) splits each task among the devices. Each task takes one group by these parts, and ETF
places the tasks: the earliest pair of a ready task and a device of its group goes next.

Unlike the paper:

- Pairs compare by finish, as in the solver `etf`. Devices of a group may differ in speed, and the
  earliest start sends long tasks to slow devices that happen to be idle. `GetfSolver("start")`
  is the paper's rule. Ties are open in the paper; here the longer path to the end wins.
- Memories bound the groups. Copies need room that the programme does not know. If ETF runs out of
  room, the programme is solved again with less memory, then with the dropped devices. The last
  resort is one group of all devices.

Moirai's authors compare with a GETF of their own: "an MILP over related machines" without
communication, solved by Gurobi. `getf` is the algorithm of Su et al.; the other is not offered,
because its placements alternate between devices at every edge. Measurements: docs/design/moirai.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from heteroplace.errors import SolverError
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.native.core_graph import BoolArray
from heteroplace.native.core_problem import NativePlan, NativeProblem
from heteroplace.native.list import etf, m_etf
from heteroplace.solve.baselines.getf_groups import (
    choose_groups,
    device_speeds,
    group_ratio,
    speed_groups,
    without_slow,
)
from heteroplace.solve.baselines.getf_lp import Units, equal_devices, memory_bytes, task_parts
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.list.scheduler_solver import ListSolver
from heteroplace.solve.problem import Problem

_MEMORY_SHARES = (1.0, 0.9, 0.8, 0.7)
"""Parts of the memories that the programme may fill, tried one after the other."""

RULES: Mapping[str, Callable[..., NativePlan]] = {"finish": etf, "start": m_etf}
"""What pairs of a ready task and a device compare by -> the scheduler."""


class GetfSolver(ListSolver):
    """Group by a linear programme, device by ETF."""

    name = "getf"

    def __init__(self, rule: str = "finish") -> None:
        """Choose the rule of ETF.

        Parameters
        ----------
        rule
            One of RULES: the pair that finishes first goes next, or the one that starts first.

        Raises
        ------
        SolverError
            There is no such rule.
        """
        if rule not in RULES:
            raise SolverError(f"getf has no rule {rule!r}; there are: {', '.join(RULES)}")
        self.rule = rule

    def native_plan(self, problem: Problem, deadline: Deadline = NEVER) -> NativePlan:
        """See `ListSolver.native_plan`; of plans that all overflow, the one that does least."""
        plans: list[NativePlan] = []
        last: BoolArray | None = None
        for allowed in _allowed_devices(problem, deadline):
            if last is not None and np.array_equal(allowed, last):
                continue
            last = allowed
            native = NativeProblem(
                problem.graph,
                problem.cluster,
                problem.costs,
                frees_tensors=problem.frees_tensors,
                allowed=allowed,
            )
            plans.append(RULES[self.rule](native, time_limit_s=deadline.left_s()))
            if plans[-1].violation == 0:
                return plans[-1]
        return min(plans, key=lambda plan: plan.violation)


def group_devices(
    problem: Problem, groups: list[list[int]], memory_share: float, deadline: Deadline = NEVER
) -> BoolArray | None:
    """Return whether each device is in the group of each task, [num_tasks, num_devices].

    Parameters
    ----------
    groups
        Device ids, the fastest group first.
    memory_share
        Part of each memory that the tasks of a group may fill.

    Returns
    -------
    BoolArray | None
        None: not all tasks fit into that part of the memories, or one can run on no group.

    Raises
    ------
    SolverError
        HiGHS failed.
    SolverLimitError
        The deadline passed.
    """
    classes = [device for group in groups for device in equal_devices(problem, group)]
    units = Units(problem, classes)
    is_possible = units.run_ns != IMPOSSIBLE
    if not is_possible.any(axis=1).all():
        return None
    # [num_groups, num_classes]
    is_in_group = np.array([[devices[0] in group for devices in classes] for group in groups])
    if len(groups) == 1:
        chosen = [0] * len(units.members)
    else:
        parts = task_parts(problem, units, classes, memory_share, deadline)
        if parts is None:
            return None
        speeds = device_speeds(problem.native.run_ns)
        chosen = choose_groups(
            parts @ is_in_group.T,
            is_possible @ is_in_group.T,
            [float(speeds[group].sum()) for group in groups],
            units.bytes,
            [memory_share * memory_bytes(problem, group) for group in groups],
        )
    on_class = is_possible & is_in_group[chosen]
    allowed = np.zeros(problem.native.run_ns.shape, dtype=bool)
    for column, devices in enumerate(classes):
        allowed[:, devices] = on_class[units.of_task, column, None]
    return allowed


def _allowed_devices(problem: Problem, deadline: Deadline) -> Iterator[BoolArray]:
    """Yield the devices of each task's group, [num_tasks, num_devices]: GETF's, then wider ones."""
    speeds = device_speeds(problem.native.run_ns)
    ratio = group_ratio(len(speeds))
    for device_set in (without_slow(speeds), speeds):
        for share in _MEMORY_SHARES:
            allowed = group_devices(problem, speed_groups(device_set, ratio), share, deadline)
            if allowed is None:
                break
            yield allowed
    yield problem.native.run_ns != IMPOSSIBLE
