"""Solutions of sub-problems -> a new schedule, if the simulator finds it shorter and it fits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ortools.sat.python import cp_model

from heteroplace.native.core_arrays import COPY, RUN, IntArray
from heteroplace.native.simulate import simulate_plan
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.lns.fixed_schedule import ProblemLists, Row, SimulatedPlan, repaired
from heteroplace.solve.lns.neighbourhood import Neighbourhood, SubProblem, Subproblem, cut_out
from heteroplace.solve.lns.neighbourhood_model import SubSolution

Change = tuple[Subproblem, SubSolution]

_MAX_EQUAL = 1000
"""Neighbourhoods that are compared with one that was improved."""
_MAX_MERGES = 16
"""Sets of changes that are tried in a round."""
_SELECTION_LIMIT = 0.1
"""Deterministic seconds for the choice of changes that fit together."""


def improve(
    schedule: SimulatedPlan,
    changes: Sequence[Change],
    best: SimulatedPlan,
    deadline: Deadline = NEVER,
) -> SimulatedPlan:
    """Return `schedule` with as many of the changes as make it ever better, else `best`.

    Better is what `SimulatedPlan.rank` says: also a schedule of equal length with fewer critical
    steps, since where several paths are critical no single neighbourhood makes it shorter. The
    changes are of neighbourhoods apart from each other, best ones first. Those that gain most of
    all that fit the memories together are tried together, then halves of them until the deadline.
    """
    chosen: list[Change] = []
    num_tried = 0

    def grow(more: Sequence[Change]) -> None:
        nonlocal best, num_tried
        num_tried += 1
        # The first is tried also when the time is up: else what the last round found were lost.
        if num_tried > 1 and (num_tried > _MAX_MERGES or deadline.is_over()):
            return
        merged_schedule = merged(schedule, [*chosen, *more], best.makespan_ns)
        if merged_schedule is not None and merged_schedule.rank < best.rank:
            best = merged_schedule
            chosen.extend(more)
        elif len(more) > 1:
            grow(more[: len(more) // 2])
            grow(more[len(more) // 2 :])

    fitting = _fitting(schedule, changes)
    if fitting:
        grow(fitting)
    return best


def _fitting(schedule: SimulatedPlan, changes: Sequence[Change]) -> list[Change]:
    """Those changes that gain most together of all that fit, workspaces aside."""
    limits, used = schedule.lists.limits, schedule.used_bytes
    growths = [growth_bytes(schedule.lists, *change) for change in changes]
    model = cp_model.CpModel()
    chosen = [model.new_bool_var("") for _ in changes]
    for memory, (limit, taken) in enumerate(zip(limits, used, strict=True)):
        growth = [more[memory] * literal for more, literal in zip(growths, chosen, strict=True)]
        model.add(cp_model.LinearExpr.sum(growth) <= limit - taken)
    model.maximize(
        cp_model.LinearExpr.sum(
            [solution.gain_ns * take for (_, solution), take in zip(changes, chosen, strict=True)]
        )
    )
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False
    solver.parameters.max_deterministic_time = _SELECTION_LIMIT
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return []
    taken_ones = zip(changes, chosen, strict=True)
    return [change for change, take in taken_ones if solver.boolean_value(take)]


def growth_bytes(lists: ProblemLists, cut: Subproblem, solution: SubSolution) -> list[int]:
    """What a change adds to each memory, workspaces aside."""
    problem = cut.problem
    growth = [0] * lists.num_memories
    memory = {run.task: lists.memory_of[run.device] for run in solution.runs}
    for index, task in enumerate(problem.tasks):
        growth[memory[index]] += task.weight_bytes
        growth[lists.memory_of[task.old_device]] -= task.weight_bytes
    for tensor in problem.tensors:
        home = memory[tensor.producer] if tensor.producer >= 0 else tensor.home
        read_in = {memory[reader] for reader in tensor.readers}
        read_before = {dst for dst, _, is_read in tensor.there if is_read}
        new = {home, *read_in, *read_before, *(dst for dst, _ in tensor.due)}
        old = {tensor.home, *(dst for dst, *_ in (*tensor.there, *tensor.later, *tensor.copies))}
        for dst in sorted(new - old):
            growth[dst] += tensor.charged[dst]
        for dst in sorted(old - new):
            growth[dst] -= tensor.charged[dst]
    return growth


def merged(
    schedule: SimulatedPlan, changes: Sequence[Change], limit_ns: int
) -> SimulatedPlan | None:
    """Return the schedule with all changes; None if it is longer than the limit or does not fit."""
    lists = schedule.lists
    old = schedule.rows
    rows: list[Row] = []
    position = 0
    for cut, solution in sorted(changes, key=lambda change: change[0].neighbourhood.first):
        rows += old[position : cut.neighbourhood.first]
        rows += _rows(lists, cut, solution)
        position = cut.neighbourhood.last
    rows += old[position:]
    native_plan = repaired(lists, rows)
    if native_plan.violation:
        return None
    times = simulate_plan(lists.problem.native, native_plan)
    pairs = zip(lists.used_bytes(times), lists.limits, strict=True)
    fits = all(used <= limit for used, limit in pairs)
    return (
        SimulatedPlan(lists, native_plan, times) if fits and times.makespan_ns <= limit_ns else None
    )


def _rows(lists: ProblemLists, cut: Subproblem, solution: SubSolution) -> list[Row]:
    """Steps of a neighbourhood by start; ties as in `src/model/native_plan.h`."""
    entries: list[tuple[int, int, int, Row]] = []
    for run in solution.runs:
        task = cut.tasks[run.task]
        entries.append((run.start_ns, run.finish_ns, 2 * task, (RUN, task, run.device, -1)))
    for copy in solution.copies:
        tensor = cut.tensors[copy.tensor]
        rank = 2 * lists.producer[tensor] + 1
        row = (COPY, tensor, copy.dst, copy.src)
        entries.append((copy.start_ns, copy.finish_ns, rank, row))
    return [row for *_, row in sorted(entries)]


class EqualNeighbourhoods:
    """Finds neighbourhoods of a schedule that look like one of them: equal layers."""

    def __init__(self, schedule: SimulatedPlan, task_class: IntArray) -> None:
        lists = schedule.lists
        self._schedule = schedule
        rows = schedule.native_plan.rows
        is_run = rows[:, 0] == RUN
        sizes = lists.problem.native.tensor_bytes
        what = np.where(is_run, task_class[np.where(is_run, rows[:, 1], 0)], 0)
        if len(sizes):
            what = np.where(is_run, what, sizes[np.where(is_run, 0, rows[:, 1])])
        look = np.stack([rows[:, 0], what, rows[:, 2], rows[:, 3]], axis=1)
        self._codes = np.unique(look, axis=0, return_inverse=True)[1].reshape(-1)

    def others(
        self, cut: Subproblem, taken: Sequence[Neighbourhood], deadline: Deadline = NEVER
    ) -> list[Subproblem]:
        """Return the cuts of all neighbourhoods like that of `cut`, apart from `taken`; those found
        by the deadline."""
        neighbourhood = cut.neighbourhood
        length = neighbourhood.last - neighbourhood.first
        codes = self._codes
        starts = np.arange(len(codes) - length + 1)
        for offset in range(length):
            if len(starts) <= 1:
                break
            starts = starts[codes[starts + offset] == codes[neighbourhood.first + offset]]
        equal: list[Subproblem] = []
        structure = _structure(cut.problem)
        end = 0
        for start in starts.tolist()[:_MAX_EQUAL]:
            other = Neighbourhood(start, start + length, neighbourhood.devices)
            if start < end or any(start < t.last and t.first < other.last for t in taken):
                continue
            if deadline.is_over():
                break
            candidate = cut_out(self._schedule, other)
            if _structure(candidate.problem) == structure:
                equal.append(candidate)
                end = other.last
        return equal


def task_classes(lists: ProblemLists) -> IntArray:
    """A number for each task; equal for tasks of equal costs."""
    native = lists.problem.native
    columns = [native.run_ns, native.weight_bytes[:, None], native.workspace_bytes[:, None]]
    table = np.concatenate(columns, axis=1)
    classes: IntArray = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
    return classes


def _structure(problem: SubProblem) -> tuple[object, ...]:
    """All of a sub-problem but times that come from outside."""
    tasks = [
        (t.devices, t.run_ns, t.old_device, t.old_position, t.is_kept, t.group, t.reads)
        for t in problem.tasks
    ]
    tensors = [(t.producer, t.home, t.num_bytes, t.readers, t.charged) for t in problem.tensors]
    return tasks, tensors
