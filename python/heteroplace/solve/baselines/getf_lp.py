"""Tasks, devices of equal run times -> parts of each task on them: the linear programme of GETF.

Minimise T over the part x[i, c] of task i on class c, a set of devices with equal run times. The
load of a class is at most T times its devices, every path takes at most T, and the bytes of a class
fit into its memories. Transfers do not count. It is the programme of Chudak and Shmoys (1999,
section 3), which Su et al. (2020) relax from their mixed-integer programme; see `getf_groups.py`.

Unlike the papers, memories have rows. Up to `_MAX_TASKS` tasks the programme is solved as it
stands. Above, tasks with nearly equal run times and bytes share their parts, and paths are left
out: loads bind long before paths do. Tasks of a colocation group count as one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

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


def equal_devices(problem: Problem, devices: Iterable[int]) -> list[list[int]]:
    """Return the devices in classes of equal run times for all tasks, by lowest device id."""
    classes: dict[bytes, list[int]] = {}
    for device in devices:
        classes.setdefault(problem.native.run_ns[:, device].tobytes(), []).append(device)
    return list(classes.values())


def memory_bytes(problem: Problem, devices: Iterable[int]) -> int:
    """Return the bytes of the memories of the devices, each memory once."""
    cluster = problem.cluster
    memories = {cluster.devices[device].memory for device in devices}
    return sum(cluster.memories[memory].bytes for memory in memories)


def task_parts(
    problem: Problem,
    units: Units,
    classes: list[list[int]],
    memory_share: float,
    deadline: Deadline = NEVER,
) -> FloatArray | None:
    """Return the part of each unit on each class, [num_units, num_classes].

    Parameters
    ----------
    units
        Of the same classes.
    memory_share
        Part of each memory that may be filled.

    Returns
    -------
    FloatArray | None
        None: not all tasks fit into that part of the memories, or one can run on no class.

    Raises
    ------
    SolverError
        HiGHS failed.
    SolverLimitError
        The deadline passed.
    """
    kinds, kind_of = units.kinds(len(problem.graph.tasks) <= _MAX_TASKS)
    capacity = memory_share * np.array([memory_bytes(problem, devices) for devices in classes])
    parts = _solve(problem, units, kinds, kind_of, classes, capacity, deadline)
    return None if parts is None else parts[kind_of]


class Units:
    """What is placed as one: a task, or all tasks of a colocation group."""

    def __init__(self, problem: Problem, classes: list[list[int]]) -> None:
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
        run = native.run_ns[:, [devices[0] for devices in classes]]
        self.run_ns: IntArray = np.zeros((len(self.members), len(classes)), dtype=np.int64)
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
    units: Units,
    kinds: list[list[int]],
    kind_of: IntArray,
    classes: list[list[int]],
    capacity: FloatArray,
    deadline: Deadline,
) -> FloatArray | None:
    """Return the part of each kind on each class, [num_kinds, num_classes]; None: no room."""
    num_kinds, num_classes = len(kinds), len(classes)
    num_parts = num_kinds * num_classes
    run = np.zeros((num_kinds, num_classes))
    np.add.at(run, kind_of, np.maximum(units.run_ns, 0))
    num_bytes = np.bincount(kind_of, weights=units.bytes, minlength=num_kinds)
    total_bytes = max(1.0, float(num_bytes.sum()))
    unit = max(1.0, float(run.max(initial=0)))
    has_paths = num_kinds == len(units.members)
    num_ends = len(problem.graph.tasks) if has_paths else 0
    # Columns: parts, ends of tasks, T.
    program = MixedProgram()
    forbidden = np.zeros((num_kinds, num_classes), dtype=bool)
    np.logical_or.at(forbidden, kind_of, units.run_ns == IMPOSSIBLE)
    program.add_columns(num_parts, upper=np.where(forbidden.ravel(), 0.0, 1.0))
    program.add_columns(num_ends)
    program.add_column(0.0, math.inf, cost=1.0)
    part = np.arange(num_parts)
    column = np.arange(num_classes)
    widths = np.array([float(len(devices)) for devices in classes])
    program.add_rows(
        np.ones(num_kinds), (part // num_classes, part, np.ones(num_parts)), is_equal=True
    )
    program.add_rows(
        np.zeros(num_classes),
        (part % num_classes, part, run.ravel() / unit),
        (column, np.full(num_classes, num_parts + num_ends), -widths),
    )
    program.add_rows(
        capacity / total_bytes,
        (part % num_classes, part, np.repeat(num_bytes, num_classes) / total_bytes),
    )
    if has_paths:
        _add_paths(program, problem, units, classes, unit)
    values = optimal_values(program, "getf", deadline)
    return None if values is None else values[:num_parts].reshape(num_kinds, num_classes)


def _add_paths(
    program: MixedProgram,
    problem: Problem,
    units: Units,
    classes: list[list[int]],
    unit: float,
) -> None:
    """Add end[i] + run[j] x[j] <= end[j], run[i] x[i] <= end[i] and end[i] <= T.

    Each unit is a kind; a task of a colocation group has the parts of the group.
    """
    graph = mean_graph(problem.native)
    num_tasks, num_edges, num_classes = len(graph.run_ns), len(graph.src), len(classes)
    num_parts = len(units.members) * num_classes
    tasks, edges = np.arange(num_tasks), np.arange(num_edges)
    ends = num_parts + tasks
    run = np.maximum(problem.native.run_ns, 0)[:, [devices[0] for devices in classes]] / unit
    head = np.concatenate([graph.dst, tasks])
    row = np.arange(num_edges + num_tasks)
    parts = units.of_task[head][:, None] * num_classes + np.arange(num_classes)
    program.add_rows(
        np.zeros(len(row)),
        (edges, ends[graph.src], np.ones(num_edges)),
        (row, ends[head], -np.ones(len(row))),
        (np.repeat(row, num_classes), parts.ravel(), run[head].ravel()),
    )
    program.add_rows(
        np.zeros(num_tasks),
        (tasks, ends, np.ones(num_tasks)),
        (tasks, np.full(num_tasks, num_parts + num_tasks), -np.ones(num_tasks)),
    )
