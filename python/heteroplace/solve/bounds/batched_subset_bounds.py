"""Proven times of some items through sets of tasks, which run in batches of a larger plan.

A batch of the whole plan may hold more items than are looked at, so that n items of a task take the
least time of any batch of n or more. Small subsets are solved by DiviML's program while time is
left; equal ones are solved once.
"""

from __future__ import annotations

import time

import numpy as np

from heteroplace.decompose.reach import longest_path_ns
from heteroplace.native.arrays import IMPOSSIBLE
from heteroplace.solve.batched.divi_milp import solve_batched_milp
from heteroplace.solve.batched.divi_rules import BatchRules
from heteroplace.solve.bounds.subproblem import Key, subproblem, subproblem_key
from heteroplace.solve.bounds.subset_bounds import Subset
from heteroplace.solve.problem import Problem

MAX_BATCHED_TASKS = 16
"""Larger subsets are bounded by path and load only: the program proves little about them."""
_SHARE = 0.25
"""Of the time that is left, for one subset."""
_NEVER = 1 << 100


class BatchedSubsetBounds:
    """Bounds of subsets of the tasks of one problem. Not thread-safe."""

    def __init__(self, problem: Problem, rounds: int, deadline_s: float) -> None:
        """Every task needs a device.

        Parameters
        ----------
        deadline_s
            On the clock of `time.perf_counter`.
        """
        self._problem = problem
        self._rounds = rounds
        self._deadline_s = deadline_s
        self._known: dict[tuple[Key, int], int] = {}
        self._keys: dict[Subset, Key] = {}
        native = problem.native
        run_ns = native.batch_run_ns.astype(object)
        run_ns[native.batch_run_ns == IMPOSSIBLE] = _NEVER
        units = np.array([len(ids) for ids in native.cluster.unit_ids], dtype=object)
        self._sizes = np.array(problem.costs.batches, dtype=object)
        self._shortest: list[int] = run_ns.min(axis=(0, 2), initial=_NEVER).tolist()
        self._work = (run_ns * units).min(axis=2)
        """[num_batches, num_tasks], least time of a batch on all units of its device."""

    def bound_ns(self, tasks: Subset, items: int) -> int:
        """Return the best that is proven."""
        key = self._key(tasks), items
        if key not in self._known:
            quick = max(self.path_ns(tasks), self.load_ns(tasks, items))
            self._known[key] = max(quick, self._solved_ns(tasks, items, quick))
        return self._known[key]

    def path_ns(self, tasks: Subset) -> int:
        """Return the longest path inside, each task in its shortest batch."""
        return longest_path_ns(self._problem.graph, tasks, self._shortest)

    def load_ns(self, tasks: Subset, items: int) -> int:
        """Return the least work of the items on all units, spread over all units."""
        if not tasks:
            return 0
        # Of the items at most `share` can be in a batch of each size.
        share = np.minimum(self._sizes, items)[:, None]
        work = (self._work[:, list(tasks)] * items // share).min(axis=0).sum()
        return -(-int(work) // len(self._problem.cluster.units))

    def _key(self, tasks: Subset) -> Key:
        if tasks not in self._keys:
            rows = self._problem.native.batch_run_ns[:, list(tasks)]
            self._keys[tasks] = (*subproblem_key(self._problem, tasks), rows.tobytes())
        return self._keys[tasks]

    def _solved_ns(self, tasks: Subset, items: int, quick_ns: int) -> int:
        left = (self._deadline_s - time.perf_counter()) * _SHARE
        if left <= 0 or not tasks or len(tasks) > MAX_BATCHED_TASKS:
            return 0
        rules = BatchRules(rounds=self._rounds, is_padded=True)
        inner = subproblem(self._problem, tasks)
        end = solve_batched_milp(inner, items, rules, time_limit_s=left, bound_ns=quick_ns)
        # Without a solution the whole has no plan either, and every bound holds.
        return 0 if end.is_infeasible else end.bound_ns
