"""Modules in a chain, one task between each and the next: MILP-SPLIT as a bound.

DiviML (section IV-B): where everything passes through one task, the makespan is the sum of the
times from one such task to the next, so it is at least the shortest path over their devices,

    best(t, v) = min over u of best(t - 1, u) + OPT(module t; enters on u, ends on v)

Unlike there not every pair (u, v) is solved. At first a pair has the length of its longest path,
each task where it is best, or what is proven with both ends free; only the pairs on the shortest
path are solved exactly (by `cpsat`), until none on it is open. What is proven holds whenever the
time ends. Transfers from the entering task count, and what else is in flight is done by then;
memory counts within a module only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heteroplace.decompose.narrow_cuts import ModulePath
from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.native.arrays import IMPOSSIBLE
from heteroplace.solve.bounds.bound import rounded_bound
from heteroplace.solve.bounds.parts import MAX_SOLVED_TASKS
from heteroplace.solve.bounds.subproblem import Key, part_key, subproblem
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.solve.registry import get_solver

FloatArray = npt.NDArray[np.float64]

ANYWHERE = -1
"""Device of an end that is not pinned: before the first module and behind the last one."""
_FIRST_TRY_S = 0.5
"""Each further try of a pair has twice the time."""


@dataclass
class _Fact:
    """What is proven about a stage for one pair of devices, and about all that equal it."""

    bound_ns: float
    tries: int = 0
    is_final: bool = False


@dataclass(frozen=True)
class _Stage:
    """A module with the task that it is entered from."""

    problem: Problem
    """The entering task takes no time here."""
    entry: int | None
    """Ids in `problem`; None: there is none."""
    exit: int | None
    key: Key


Pair = tuple[int, int, int]
"""Stage, device of the entering task, device of the leaving one."""


class ChainBound:
    """The stages of a chain of modules and what is proven about them. Not thread-safe."""

    def __init__(self, problem: Problem, path: ModulePath) -> None:
        """Every task needs a device; `path` has one channel between modules (`is_chain`)."""
        self._stages = [_stage(problem, path, index) for index in range(len(path.modules))]
        self._num_devices = len(problem.cluster.devices)
        self._facts: dict[tuple[Key, int, int], _Fact] = {}

    def improve(self, time_limit_s: float, threads: int = 1, target_ns: int = 0) -> int:
        """Solve pairs on the shortest path until none is open; return the bound in ns.

        Parameters
        ----------
        target_ns
            A known makespan: a bound that reaches it is not improved; 0: none is known.
        """
        begin = time.perf_counter()
        while True:
            length, pairs = self.shortest()
            left = time_limit_s - (time.perf_counter() - begin)
            waiting = [pair for pair in pairs if not self._fact(pair).is_final]
            if left <= 0 or not waiting or 0 < target_ns <= length:
                return rounded_bound(length, 0.0) if np.isfinite(length) else 0
            floors = [(index, ANYWHERE, ANYWHERE) for index, _, _ in waiting]
            untried = [pair for pair in floors if self._fact(pair).tries == 0]
            pair = min(untried or waiting, key=lambda one: (self._fact(one).tries, one))
            self._solve(pair, left, threads)

    def shortest(self) -> tuple[float, list[Pair]]:
        """Return the length of the shortest path by what is proven so far, and its pairs."""
        best: dict[int, tuple[float, list[Pair]]] = {ANYWHERE: (0.0, [])}
        for index, stage in enumerate(self._stages):
            ends = [ANYWHERE] if stage.exit is None else range(self._num_devices)
            found: dict[int, tuple[float, list[Pair]]] = {}
            for end in ends:
                options = [
                    (length + self._bound((index, begin, end)), begin)
                    for begin, (length, _) in best.items()
                ]
                length, begin = min(options)
                found[end] = (length, [*best[begin][1], (index, begin, end)])
            best = found
        return min(best.values())

    def _bound(self, pair: Pair) -> float:
        """What is proven about a pair, by itself or because it is so for all pairs."""
        floor = self._fact((pair[0], ANYWHERE, ANYWHERE)).bound_ns
        return max(floor, self._fact(pair).bound_ns)

    def _fact(self, pair: Pair) -> _Fact:
        index, begin, end = pair
        stage = self._stages[index]
        key = (stage.key, begin, end)
        if key not in self._facts:
            self._facts[key] = _Fact(_longest_path(stage, begin, end))
            if not np.isfinite(self._facts[key].bound_ns):
                self._facts[key].is_final = True
        return self._facts[key]

    def _solve(self, pair: Pair, time_limit_s: float, threads: int) -> None:
        index, begin, end = pair
        fact = self._fact(pair)
        limit = min(time_limit_s, _FIRST_TRY_S * 2.0**fact.tries)
        fact.tries += 1
        options = SolveOptions(time_limit_s=limit, threads=threads)
        try:
            result = get_solver("cpsat").solve(_pinned(self._stages[index], begin, end), options)
        except SolverLimitError:
            return
        except InfeasibleError:
            fact.bound_ns, fact.is_final = np.inf, True
        else:
            fact.bound_ns = max(fact.bound_ns, float(result.bound_ns))
            fact.is_final = result.status == "optimal"


def is_chain(graph: TaskGraph, path: ModulePath) -> bool:
    """Whether several modules follow each other over one task each, all small enough to solve.

    Every task of a module must come before the one that it is left by, and after the one that it
    is entered from: else modules overlap in time.
    """
    if len(path.modules) < 2 or max(map(len, path.modules)) > MAX_SOLVED_TASKS:
        return False
    ends = [{src for src, _ in boundary.channels} for boundary in path.boundaries]
    if any(len(sources) != 1 or None in sources for sources in ends):
        return False
    before: set[int] = set()
    for module, sources in zip(path.modules, [*ends, set()], strict=True):
        inside = {*module, *before}
        leaving = {task for task in sources if task is not None} & inside
        if sources and not leaving:
            return False
        behind, ahead = set(before), set(leaving)
        for task in sorted(module):
            if not before or not behind.isdisjoint(graph.predecessors[task]):
                behind.add(task)
        for task in sorted(inside, reverse=True):
            if task in ahead:
                ahead.update(set(graph.predecessors[task]) & inside)
        if not inside <= behind or (leaving and not inside <= ahead):
            return False
        before = leaving
    return True


def _stage(problem: Problem, path: ModulePath, index: int) -> _Stage:
    tasks = list(path.modules[index])
    entry = path.boundaries[index - 1].channels[0][0] if index > 0 else None
    leaving = path.boundaries[index].channels[0][0] if index < len(path.boundaries) else None
    inside = sorted({*tasks, *([] if entry is None else [entry])})
    part = subproblem(problem, inside)
    rows = problem.native.run_ns[inside].tolist()
    start = None if entry is None else inside.index(entry)

    def cost(task: int, device: int) -> Cost:
        if rows[task][device] == IMPOSSIBLE:
            return Cost.unsupported("not allowed")
        return Cost.given(0 if task == start else rows[task][device])

    free = Problem(part.graph, part.cluster, build_table(part.graph, part.cluster, cost))
    end = None if leaving is None else inside.index(leaving)
    return _Stage(free, start, end, (part_key(problem, inside), start, end))


def _pinned(stage: _Stage, begin: int, end: int) -> Problem:
    """The stage with its ends on the given devices."""
    problem, rows = stage.problem, stage.problem.native.run_ns.tolist()
    pins = {stage.entry: begin, stage.exit: end}

    def cost(task: int, device: int) -> Cost:
        if rows[task][device] == IMPOSSIBLE or pins.get(task, device) not in (device, ANYWHERE):
            return Cost.unsupported("elsewhere")
        return Cost.given(rows[task][device])

    graph, cluster = problem.graph, problem.cluster
    return Problem(graph, cluster, build_table(graph, cluster, cost))


def _longest_path(stage: _Stage, begin: int, end: int) -> float:
    """Longest path with each task where it is best for its reader; inf: the pair is impossible."""
    problem, native = stage.problem, stage.problem.native
    run = np.where(native.run_ns == IMPOSSIBLE, np.inf, native.run_ns.astype(np.float64))
    for task, device in ((stage.entry, begin), (stage.exit, end)):
        if task is not None and device != ANYWHERE:
            others = np.arange(run.shape[1]) != device
            run[task, others] = np.inf
    finish = np.zeros_like(run)
    for task in range(len(run)):
        start = np.zeros(run.shape[1])
        for tensor in problem.graph.task_inputs[task]:
            made = problem.graph.tensors[tensor].producer
            if made is not None:
                size = problem.graph.tensors[tensor].bytes
                arrival = (finish[made][:, None] + _transfers(problem, size)).min(axis=0)
                start = np.maximum(start, arrival)
        finish[task] = start + run[task]
    return float(finish.min(axis=1).max())


def _transfers(problem: Problem, num_bytes: int) -> FloatArray:
    """Time of a copy of so many bytes from device to device, inf where there is no way."""
    cluster = problem.cluster
    memories = [device.memory for device in cluster.devices]
    return np.array(
        [
            [
                cluster.transfer_ns(cluster.route(src, dst), num_bytes)
                if cluster.is_reachable(src, dst)
                else np.inf
                for dst in memories
            ]
            for src in memories
        ]
    )
