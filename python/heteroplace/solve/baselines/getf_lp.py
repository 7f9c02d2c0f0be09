"""Tasks, groups of equal devices -> a group for each task: the linear program of GETF.

Minimise T over the part x[i, g] of task i on group g: the load of a group is at most T times its
devices, every path takes at most T, the bytes of a group fit into its memories; transfers do not
count. Up to `_MAX_TASKS` tasks this is solved as it stands. Above, tasks with nearly equal run
times and bytes share their parts and paths are left out: there loads bind long before paths do.

Rounding: each task takes the group that it lacks most so far, so that the parts of tasks alike are
met as a whole; a task alone takes its largest part. Tasks of a colocation group count as one.
"""

from __future__ import annotations

import math

import numpy as np

from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.native.list import mean_graph
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.lp.linear import optimal_values
from heteroplace.solve.lp.linear_program import FloatArray, MixedProgram
from heteroplace.solve.problem import Problem

_MAX_TASKS = 1_000
"""Tasks up to which paths are part of the program."""
_STEP_RATIO = 1.1
"""Run times and bytes of tasks that count as alike differ by less."""


def speed_groups(problem: Problem) -> list[list[int]]:
    """Return the devices in groups of equal run times for all tasks, by lowest device id."""
    groups: dict[bytes, list[int]] = {}
    for device in range(len(problem.cluster.devices)):
        groups.setdefault(problem.native.run_ns[:, device].tobytes(), []).append(device)
    return list(groups.values())


def assign_groups(
    problem: Problem, groups: list[list[int]], memory_share: float, deadline: Deadline = NEVER
) -> list[int] | None:
    """Return the group of each task; None: not all tasks fit into that part of the memories.

    Raises
    ------
    SolverError
        HiGHS failed.
    """
    units = _Units(problem, groups)
    kinds, kind_of = units.kinds(len(problem.graph.tasks) <= _MAX_TASKS)
    capacity = memory_share * np.array(
        [
            sum(
                problem.cluster.memories[memory].bytes
                for memory in sorted({problem.cluster.devices[device].memory for device in group})
            )
            for group in groups
        ]
    )
    parts = _solve(problem, units, kinds, kind_of, groups, capacity, deadline)
    if parts is None:
        return None
    chosen = [0] * len(problem.graph.tasks)
    lack = np.zeros_like(parts)
    for unit, members in enumerate(units.members):
        kind = kind_of[unit]
        lack[kind] += parts[kind]
        allowed = np.where(units.run_ns[unit] == IMPOSSIBLE, -np.inf, lack[kind])
        group = int(allowed.argmax())
        lack[kind, group] -= 1.0
        for task in members:
            chosen[task] = group
    return chosen


class _Units:
    """What is placed as one: a task, or all tasks of a colocation group."""

    def __init__(self, problem: Problem, groups: list[list[int]]) -> None:
        native, graph = problem.native, problem.graph
        by_colocation: dict[int, list[int]] = {}
        self.members: list[list[int]] = []
        for task, colocation in enumerate(native.task_group):
            if colocation >= 0 and colocation in by_colocation:
                by_colocation[colocation].append(task)
                continue
            self.members.append([task])
            if colocation >= 0:
                by_colocation[colocation] = self.members[-1]
        self.of_task = np.zeros(len(graph.tasks), dtype=np.int64)
        for unit, members in enumerate(self.members):
            self.of_task[members] = unit
        run = native.run_ns[:, [group[0] for group in groups]]
        self.run_ns: IntArray = np.zeros((len(self.members), len(groups)), dtype=np.int64)
        np.add.at(self.run_ns, self.of_task, np.maximum(run, 0))
        for unit, members in enumerate(self.members):
            self.run_ns[unit, (run[members] == IMPOSSIBLE).any(axis=0)] = IMPOSSIBLE
        self.bytes: IntArray = np.zeros(len(self.members), dtype=np.int64)
        for task, value in enumerate(graph.tasks):
            output_bytes = sum(graph.tensors[tensor].bytes for tensor in graph.task_outputs[task])
            self.bytes[self.of_task[task]] += value.weight_bytes + output_bytes

    def kinds(self, is_each_alone: bool) -> tuple[list[list[int]], IntArray]:
        """Units of each kind, and the kind of each unit."""
        count = len(self.members)
        if is_each_alone:
            return [[unit] for unit in range(count)], np.arange(count)
        values = np.concatenate([self.run_ns, self.bytes[:, None]], axis=1)
        keys = np.where(
            values < 0, -1, np.rint(np.log(np.maximum(values, 1)) / math.log(_STEP_RATIO))
        )
        _, kind_of = np.unique(keys, axis=0, return_inverse=True)
        kind_of = kind_of.reshape(-1).astype(np.int64)
        order = np.argsort(kind_of, kind="stable")
        ends = np.cumsum(np.bincount(kind_of))[:-1]
        return [part.tolist() for part in np.split(order, ends)], kind_of


def _solve(
    problem: Problem,
    units: _Units,
    kinds: list[list[int]],
    kind_of: IntArray,
    groups: list[list[int]],
    capacity: FloatArray,
    deadline: Deadline,
) -> FloatArray | None:
    """Return the part of each kind on each group, [num_kinds, num_groups]; None: no room."""
    num_kinds, num_groups = len(kinds), len(groups)
    num_parts = num_kinds * num_groups
    run = np.zeros((num_kinds, num_groups))
    np.add.at(run, kind_of, np.maximum(units.run_ns, 0))
    num_bytes = np.bincount(kind_of, weights=units.bytes, minlength=num_kinds)
    total_bytes = max(1.0, float(num_bytes.sum()))
    unit = max(1.0, float(run.max(initial=0)))
    has_paths = num_kinds == len(units.members)
    num_ends = len(problem.graph.tasks) if has_paths else 0
    # Columns: parts, ends of tasks, T.
    program = MixedProgram()
    forbidden = np.zeros((num_kinds, num_groups), dtype=bool)
    np.logical_or.at(forbidden, kind_of, units.run_ns == IMPOSSIBLE)
    program.add_columns(num_parts, upper=np.where(forbidden.ravel(), 0.0, 1.0))
    program.add_columns(num_ends)
    program.add_column(0.0, math.inf, cost=1.0)
    part = np.arange(num_parts)
    group = np.arange(num_groups)
    widths = np.array([float(len(devices)) for devices in groups])
    program.add_rows(
        np.ones(num_kinds), (part // num_groups, part, np.ones(num_parts)), is_equal=True
    )
    program.add_rows(
        np.zeros(num_groups),
        (part % num_groups, part, run.ravel() / unit),
        (group, np.full(num_groups, num_parts + num_ends), -widths),
    )
    program.add_rows(
        capacity / total_bytes,
        (part % num_groups, part, np.repeat(num_bytes, num_groups) / total_bytes),
    )
    if has_paths:
        _add_paths(program, problem, units, groups, unit)
    values = optimal_values(program, "getf", deadline)
    return None if values is None else values[:num_parts].reshape(num_kinds, num_groups)


def _add_paths(
    program: MixedProgram,
    problem: Problem,
    units: _Units,
    groups: list[list[int]],
    unit: float,
) -> None:
    """Add end[i] + run[j] x[j] <= end[j], run[i] x[i] <= end[i] and end[i] <= T.

    Each unit is a kind; a task of a colocation group has the parts of the group.
    """
    graph = mean_graph(problem.native)
    num_tasks, num_edges, num_groups = len(graph.run_ns), len(graph.src), len(groups)
    num_parts = len(units.members) * num_groups
    tasks, edges = np.arange(num_tasks), np.arange(num_edges)
    ends = num_parts + tasks
    run = np.maximum(problem.native.run_ns, 0)[:, [devices[0] for devices in groups]] / unit
    head = np.concatenate([graph.dst, tasks])
    row = np.arange(num_edges + num_tasks)
    parts = units.of_task[head][:, None] * num_groups + np.arange(num_groups)
    program.add_rows(
        np.zeros(len(row)),
        (edges, ends[graph.src], np.ones(num_edges)),
        (row, ends[head], -np.ones(len(row))),
        (np.repeat(row, num_groups), parts.ravel(), run[head].ravel()),
    )
    program.add_rows(
        np.zeros(num_tasks),
        (tasks, ends, np.ones(num_tasks)),
        (tasks, np.full(num_tasks, num_parts + num_tasks), -np.ones(num_tasks)),
    )
