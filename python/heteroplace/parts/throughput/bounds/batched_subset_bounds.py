"""Proven times of some items through sets of tasks, which run in batches of a larger plan.

A batch of the whole plan may hold more items than are looked at, so that n items of a task take the
least time of any batch of n or more. Small subsets are solved by DiviML's program while time is
left; equal ones are solved once.
"""

from __future__ import annotations

import numpy as np

from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.parts.throughput.batched.divi_milp import solve_batched_milp
from heteroplace.parts.throughput.batched.divi_rules import BatchRules
from heteroplace.parts.throughput.bounds.subproblem import Key, subproblem, subproblem_key
from heteroplace.parts.throughput.bounds.subset_bounds import Subset
from heteroplace.parts.throughput.decompose.reach import longest_path_ns
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.problem import Problem

MAX_BATCHED_TASKS = 16
"""Larger subsets are bounded by path and load only: the program proves little about them."""
_SHARE = 0.25
"""Of the time that is left, for one subset."""
_NEVER_NS = 1 << 62
"""Longer than any task (`native.limits`)."""


class BatchedSubsetBounds:
    """Bounds of subsets of the tasks of one problem. Not thread-safe."""

    def __init__(
        self, problem: Problem, rounds: int, solves_until: Deadline, deadline: Deadline = NEVER
    ) -> None:
        """Every task needs a device.

        Parameters
        ----------
        solves_until
            From then on no subset is solved.
        deadline
            From then on TimeUpError is raised.
        """
        self._problem = problem
        self._rounds = rounds
        self._solves_until = solves_until
        self._deadline = deadline
        self._known: dict[tuple[Key, int], int] = {}
        self._keys: dict[Subset, Key] = {}
        self._paths: dict[Subset, int] = {}
        native = problem.native
        run_ns = np.where(native.batch_run_ns == IMPOSSIBLE, _NEVER_NS, native.batch_run_ns)
        units = np.array([len(ids) for ids in native.cluster.unit_ids])
        self._sizes = np.array(problem.costs.batches, dtype=object)
        self._shortest: list[int] = run_ns.min(axis=(0, 2), initial=_NEVER_NS).tolist()
        # Python's integers from here on: on many units and of many items times may be long.
        of_units = [run_ns[:, :, units == n].min(axis=2).astype(object) * n for n in set(units)]
        self._work = np.minimum.reduce(of_units)
        """[num_batches, num_tasks], least time of a batch on all units of its device."""

    def bound_ns(self, tasks: Subset, items: int) -> int:
        """Return the best that is proven."""
        self._deadline.check()
        key = self._key(tasks), items
        if key not in self._known:
            quick = max(self.path_ns(tasks), self.load_ns(tasks, items))
            self._known[key] = max(quick, self._solved_ns(tasks, items, quick))
        return self._known[key]

    def path_ns(self, tasks: Subset) -> int:
        """Return the longest path inside, each task in its shortest batch."""
        if tasks not in self._paths:
            self._paths[tasks] = longest_path_ns(self._problem.graph, tasks, self._shortest)
        return self._paths[tasks]

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
        left = self._solves_until.left_s() * _SHARE
        if left <= 0 or not tasks or len(tasks) > MAX_BATCHED_TASKS:
            return 0
        rules = BatchRules(memory="weights", rounds=self._rounds, is_padded=True)
        inner = subproblem(self._problem, tasks)
        end = solve_batched_milp(inner, items, rules, time_limit_s=left, bound_ns=quick_ns)
        # Without a solution the whole has no plan either, and every bound holds.
        return 0 if end.is_infeasible else end.bound_ns
