"""Proven bounds of sets of tasks, each as a problem of its own; equal ones are solved once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.solve.bounds.load import Loads
from heteroplace.solve.bounds.quick import quick_bound
from heteroplace.solve.bounds.subproblem import Key, part_key, subproblem
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.solve.registry import get_solver

Part = tuple[int, ...]
"""Task ids, ascending."""

MAX_SOLVED_TASKS = 40
"""Larger parts are bounded, not solved: CP-SAT proves little about them in seconds."""
_FIRST_TRY_S = 1.0
"""Each further try of a part has twice the time."""


@dataclass
class _Facts:
    """What is known about a part, and about all that equal it."""

    bound_ns: int
    tries: int = 0
    is_final: bool = False
    """Trying again does not help: it is the optimum, or the part is too large to solve."""


class Parts:
    """The parts of one problem. Not thread-safe."""

    def __init__(self, problem: Problem) -> None:
        """Every task needs a device."""
        self._problem = problem
        self._loads = Loads(problem.native)
        self._key: dict[Part, Key] = {}
        self._facts: dict[Key, _Facts] = {}

    def bound_ns(self, tasks: Part) -> int:
        """Return what is proven about a part, at first by its path and its load."""
        return self._of(tasks).bound_ns

    def load_ns(self, tasks: Part) -> int:
        """Return the load of some tasks."""
        return self._loads.bound_ns(np.array(tasks))

    def improve(self, critical: tuple[Part, ...], time_limit_s: float, threads: int) -> bool:
        """Solve one part, a critical one if possible; False if no part can be improved."""
        waiting = [part for part in critical if not self._of(part).is_final]
        waiting = waiting or [part for part in self._key if not self._of(part).is_final]
        if not waiting:
            return False
        part = min(waiting, key=lambda tasks: (self._of(tasks).tries, -len(tasks), tasks))
        facts = self._of(part)
        limit = min(time_limit_s, _FIRST_TRY_S * 2.0**facts.tries)
        facts.tries += 1
        self._solve(part, facts, limit, threads)
        return True

    def waiting(self, critical: tuple[Part, ...] | None, max_tasks: int) -> list[Part]:
        """Return those of some parts (None: of all) that a solve may improve, of equal ones one,
        those with the fewest tries first; larger ones are left out."""
        found: dict[Key, Part] = {}
        for part in tuple(self._key) if critical is None else critical:
            if not self._of(part).is_final and len(part) <= max_tasks:
                found.setdefault(self._key[part], part)
        return sorted(found.values(), key=lambda p: (self._of(p).tries, -len(p), p))

    def learn(self, tasks: Part, bound_ns: int, is_final: bool) -> None:
        """Keep what a solve of a part proved."""
        facts = self._of(tasks)
        facts.bound_ns = max(facts.bound_ns, bound_ns)
        facts.is_final = facts.is_final or is_final
        facts.tries += 1

    def _of(self, tasks: Part) -> _Facts:
        if tasks not in self._key:
            self._key[tasks] = part_key(self._problem, tasks)
        key = self._key[tasks]
        if key not in self._facts:
            self._facts[key] = _Facts(max(self._path_ns(tasks), self.load_ns(tasks)))
        return self._facts[key]

    def _path_ns(self, tasks: Part) -> int:
        """Longest path inside, each task on its fastest device."""
        run = self._problem.native.run_ns
        finish: dict[int, int] = {}
        for task in tasks:
            before = self._problem.graph.predecessors[task]
            start = max((finish[other] for other in before if other in finish), default=0)
            finish[task] = start + int(min(time for time in run[task].tolist() if time >= 0))
        return max(finish.values())

    def _solve(self, tasks: Part, facts: _Facts, time_limit_s: float, threads: int) -> None:
        part = subproblem(self._problem, tasks)
        if len(tasks) > MAX_SOLVED_TASKS:
            facts.bound_ns = max(facts.bound_ns, quick_bound(part).ns)
            facts.is_final = True
            return
        options = SolveOptions(time_limit_s=time_limit_s, threads=threads)
        try:
            result = get_solver("cpsat").solve(part, options)
        except SolverLimitError:
            facts.bound_ns = max(facts.bound_ns, quick_bound(part).ns)
        except InfeasibleError:
            # Nor has the whole problem a plan: every bound holds.
            facts.is_final = True
        else:
            facts.bound_ns = max(facts.bound_ns, result.bound_ns)
            facts.is_final = result.status == "optimal"
