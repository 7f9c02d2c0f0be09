"""For each task a reason why it is where it is, found by asking what else would happen.

The reasons are computed from the plan alone, whoever made it: the placement with one task moved is
scheduled again in the plan's order, for every task and every device.
"""

from __future__ import annotations

import bisect
from dataclasses import replace
from functools import cached_property

import numpy as np

from heteroplace.model.plan import Plan, Run
from heteroplace.model.timeline import Timeline
from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.simulate.simulator import simulate
from heteroplace.solve.moves import MAX_WORK, Moves, most_movable, moves
from heteroplace.solve.objective import THROUGHPUT
from heteroplace.solve.problem import Problem

_MOVE_S_PER_WORK = 1.2e-7
_REASON_S_PER_TASK = 5e-5
_MAX_OTHERS = 7
"""Devices that a reason compares with, the fastest first."""
_BLOCK = 64
"""Tasks whose devices are ranked together when one of them is asked for."""


def explain(
    problem: Problem, plan: Plan, objective: str = "latency", timeline: Timeline | None = None
) -> Plan:
    """Return `plan` with `reasons` filled, one sentence per task.

    Parameters
    ----------
    plan
        A plan that passes `check_plan` for `problem`.
    objective
        What it was made for: what-ifs speak about it.
    timeline
        The simulated timeline of `plan`; None: it is simulated here.
    """
    reasons = Reasons(problem, plan, objective, timeline)
    return replace(plan, reasons=tuple(map(reasons.of, range(len(problem.graph.tasks)))))


def explain_s(problem: Problem) -> float:
    """Return about how many seconds the reasons for a plan take, which solving should leave."""
    count = len(problem.graph.tasks)
    work = count**2 * len(problem.cluster.devices)
    moves_s = 0.0 if work > MAX_WORK else work * _MOVE_S_PER_WORK
    return moves_s + _REASON_S_PER_TASK * count


class Reasons:
    """Why tasks are where they are, one by one: where a table shows few of many tasks, few reasons
    are asked for."""

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        objective: str = "latency",
        timeline: Timeline | None = None,
    ) -> None:
        """Look at the plan; parameters as of `explain`."""
        self._problem = problem
        self._objective = objective
        self._native = problem.native
        self._plan = plan
        self._placement = self._native.placement(plan.steps)
        if timeline is None:
            timeline = simulate(problem.graph, problem.cluster, problem.costs, plan, self._native)
        self._fastest: dict[int, list[list[int]]] = {}
        """For each block of tasks that was asked for: of each the devices that run it fastest."""
        self._start_ns: dict[int, int] = {}
        self._on_unit: list[list[tuple[int, int, int]]] = [[] for _ in problem.cluster.units]
        """For each unit (start, finish, task) of what it runs, in order."""
        for index, step in enumerate(plan.steps):
            if isinstance(step, Run):
                start, finish = timeline.step_times[index]
                self._start_ns[step.task] = start
                for unit in problem.cluster.unit_ids[step.device]:
                    self._on_unit[unit].append((start, finish, step.task))

    def of(self, task: int) -> str:
        """Return the reason of a task."""
        parts = [self._constraint(task)]
        if not parts[0]:
            parts = [self._speed(task), self._locality(task), self._others_busy(task)]
            if self._moved is not None:
                parts.append(self._what_if(task, self._moved))
        return "; ".join(part for part in parts if part)

    @cached_property
    def _moved(self) -> Moves | None:
        """The objective with single tasks moved; None: that is too much work."""
        count = len(self._problem.graph.tasks)
        if self._plan.items > 1 or most_movable(self._problem, self._plan) < count:
            return None
        return moves(self._problem, self._plan, range(count), self._objective)

    def _ranked(self, task: int) -> list[int]:
        """The devices that run a task fastest, the fastest first, ties by id."""
        block, index = divmod(task, _BLOCK)
        if block not in self._fastest:
            run_ns = self._native.run_ns[block * _BLOCK : (block + 1) * _BLOCK]
            ranked = np.where(run_ns == IMPOSSIBLE, np.iinfo(np.int64).max, run_ns)
            self._fastest[block] = _least(ranked, _MAX_OTHERS + 1).tolist()
        return self._fastest[block][index][: self._num_allowed[task]]

    @cached_property
    def _num_allowed(self) -> list[int]:
        """[num_tasks], how many devices can run each."""
        counts: list[int] = np.count_nonzero(self._native.run_ns != IMPOSSIBLE, axis=1).tolist()
        return counts

    def _name(self, device: int) -> str:
        return self._problem.cluster.devices[device].name

    def _constraint(self, task: int) -> str:
        """Why there was no choice; "" if there was one."""
        value = self._problem.graph.tasks[task]
        if self._num_allowed[task] > 1:
            return ""
        if value.devices is not None and len(value.devices) == 1:
            return f"pinned to {value.devices[0]}"
        if value.together is not None:
            return f"the colocation group {value.together!r} can only share this device"
        return "only device that can run it"

    def _speed(self, task: int) -> str:
        device = self._placement[task]
        run = self._native.run_ns[task]
        other = next(other for other in self._ranked(task) if other != device)
        word = "fastest" if run[device] <= run[other] else "not the fastest"
        text = f"{word} ({self._name(other)} takes {_us(int(run[other]))})"
        group = self._problem.graph.tasks[task].together
        return text if group is None else f"with the colocation group {group!r}; {text}"

    def _locality(self, task: int) -> str:
        """Say if all that the task reads was made in its memory while other memories exist."""
        cluster, graph = self._problem.cluster, self._problem.graph
        if len(cluster.memories) == 1 or not graph.predecessors[task]:
            return ""
        memory = cluster.devices[self._placement[task]].memory
        homes = {
            cluster.devices[self._placement[before]].memory for before in graph.predecessors[task]
        }
        if homes == {memory}:
            return f"all it reads from tasks is in {cluster.memories[memory].name} already"
        return ""

    def _others_busy(self, task: int) -> str:
        """Name a task that kept a faster device busy when this one started."""
        run = self._native.run_ns[task]
        device = self._placement[task]
        for other in self._ranked(task):
            if run[other] >= run[device]:
                return ""
            for unit in self._problem.cluster.unit_ids[other]:
                busy = self._running(unit, self._start_ns[task])
                if busy is not None and busy != task:
                    name = self._problem.graph.tasks[busy].name
                    return (
                        f"{self._name(device)} was free while {self._name(self._placement[busy])} "
                        f"ran {name}"
                    )
        return ""

    def _running(self, unit: int, time_ns: int) -> int | None:
        """The task that the unit runs at a time; None: it is idle."""
        spans = self._on_unit[unit]
        index = bisect.bisect_right(spans, time_ns, key=lambda span: span[0]) - 1
        if index >= 0 and time_ns < spans[index][1]:
            return spans[index][2]
        return None

    def _what_if(self, task: int, moved: Moves) -> str:
        """What the best other device would change."""
        own, baseline = self._placement[task], moved.baseline_ns
        row = enumerate(moved.objective_ns[task])
        choices = [(ns, device) for device, ns in row if device != own and ns is not None]
        if not choices:
            return "on any other device a memory would be too small"
        best, other = min(choices)
        if not baseline:
            return ""
        change = (best - baseline) / baseline
        what = "the time per item" if self._objective == THROUGHPUT else "the run"
        if best > baseline:
            return f"moving it to {self._name(other)} would lengthen {what} by {change:.1%}"
        if best == baseline:
            return f"moving it to {self._name(other)} would change nothing"
        return f"moving it alone to {self._name(other)} would shorten {what} by {-change:.1%}"


def _least(values: IntArray, count: int) -> IntArray:
    """Return the columns of the least values of each row, ascending; ties by column."""
    if count < values.shape[1]:
        columns = np.sort(np.argpartition(values, count, axis=1)[:, :count], axis=1)
        values = np.take_along_axis(values, columns, axis=1)
        order = np.argsort(values, axis=1, kind="stable")
        return np.take_along_axis(columns, order, axis=1)
    return np.argsort(values, axis=1, kind="stable")


def _us(ns: int) -> str:
    return f"{ns / 1000:.1f} us"
