"""Cross-entropy search over groups of tasks: the stand-in for learned placers (HRL, Placeto).

Hierarchical placement (Mirhoseini et al. 2018) learns to put ops into at most 64 groups and groups
on devices, with the reward -sqrt(time) and a penalty alone for running out of memory. Unlike it:
the groups are fixed, segments of a depth-first topological order of equal run time, and each
group has its own distribution over devices, fitted by the cross-entropy method (Rubinstein
1999, 10.1023/A:1010091220143) instead of policy gradients; both learn from nothing but sampled
rewards. Samples are run by the list scheduler of the core, in the order of upward ranks, not on
the machine. C++: src/search/mapping_search.cc (search::EvaluateMappings).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heteroplace.native.arrays import IMPOSSIBLE, IntArray
from heteroplace.native.list import depth_first_order, evaluate_order, rank_order
from heteroplace.native.search import NEVER_NS, evaluate_mappings
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.feasibility import check_possible, nearest_allowed, no_placement_error
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result, report
from heteroplace.solve.search.initial_solutions import INITIAL_SHARE

MAX_GROUPS = 64
"""Groups whose devices are learned."""
_ROUND = 64
"""Samples between two updates."""
_ELITE_RATIO = 0.125
"""Part of a round that the distributions move towards."""
_SMOOTHING = 0.3
"""How far they move: 1 forgets what was before."""
_CONVERGED = 0.98
"""When every group has a device of this probability, the search begins again."""
_CHUNK_ENTRIES = 1 << 20
"""Devices of tasks handed to the core at once; bounds the memory and the time between clocks."""

FloatArray = npt.NDArray[np.float64]


class CrossEntropySolver:
    """Samples devices for groups of tasks and learns from the best ones."""

    name = "cross-entropy"

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`. The budget is `iterations`, the samples, or the time.

        The first samples put everything on one device each.
        """
        begin = time.perf_counter()
        check_possible(problem)
        bound = lower_bound(problem, time_limit_s=options.part_s(INITIAL_SHARE)).ns
        search = _Search(problem, options, begin, bound)
        search.run()
        if search.best is None:
            raise no_placement_error(problem)
        plan = evaluate_order(problem.native, search.best.tolist(), search.order)
        return make_result(
            problem,
            problem.native.plan(plan.steps, f"{self.name} seed {options.seed}"),
            bound,
            self.name,
            time.perf_counter() - begin,
            was_interrupted=search.was_interrupted,
            candidates=((self.name, plan.makespan_ns, f"{search.num_samples} samples"),),
        )


@dataclass
class _Search:
    """The samples of one solve."""

    problem: Problem
    options: SolveOptions
    begin: float
    bound_ns: int

    def __post_init__(self) -> None:
        order = depth_first_order(self.problem.native)
        self.order = rank_order(self.problem.native)
        self.group = task_groups(self.problem, order)
        self.nearest = nearest_allowed(self.problem)
        self.best: IntArray | None = None
        """[num_tasks], the best mapping that fits."""
        self.best_ns = np.iinfo(np.int64).max
        self.num_samples = 0
        self.was_interrupted = False

    def run(self) -> None:
        """Sample and learn until the budget is used or Ctrl-C comes."""
        random = np.random.default_rng(self.options.seed)
        num_devices = self.nearest.shape[1]
        num_groups = int(self.group.max(initial=-1)) + 1
        uniform = np.full((num_groups, num_devices), 1.0 / num_devices)
        chances = uniform
        first = np.repeat(np.arange(num_devices)[:, None], num_groups, axis=1)
        try:
            while not self._is_over():
                choices = _sample(random, chances, _ROUND)
                choices[: min(len(first), _ROUND)] = first[:_ROUND]
                first = first[:0]
                rewards = self._rewards(choices)
                chances = _learn(chances, choices[: len(rewards)], rewards)
                if (chances.max(axis=1, initial=0.0) > _CONVERGED).all():
                    chances = uniform
        except KeyboardInterrupt:
            if self.best is None:
                raise
            self.was_interrupted = True

    def _elapsed(self) -> float:
        return time.perf_counter() - self.begin

    def _is_over(self) -> bool:
        budget = self.options.iterations
        if self.num_samples == 0:
            return False
        if self.best is not None and self.best_ns <= self.bound_ns:
            return True
        if self.nearest.shape[1] < 2 or (budget is not None and self.num_samples >= budget):
            return True
        return self._elapsed() >= self.options.time_limit_s

    def _rewards(self, choices: IntArray) -> FloatArray:
        """Reward of each sample, as far as the budget goes; keeps the best sample."""
        budget = self.options.iterations
        if budget is not None:
            choices = choices[: max(1, budget - self.num_samples)]
        chunk = max(1, _CHUNK_ENTRIES // max(1, len(self.group)))
        tasks = np.arange(len(self.group))
        rewards: list[float] = []
        for first in range(0, len(choices), chunk):
            mappings = self.nearest[tasks, choices[first : first + chunk][:, self.group]]
            # What cannot be among the elite is given up early, and its memory not looked at.
            values = evaluate_mappings(
                self.problem.native, mappings, self.order, _elite_count(len(choices))
            )
            fits = (values.violation == 0) & (values.makespan_ns < NEVER_NS)
            rewards.extend(_reward(values.makespan_ns, fits))
            makespans = np.where(fits, values.makespan_ns, self.best_ns)
            if fits.any() and (self.best is None or makespans.min() < self.best_ns):
                self.best = mappings[makespans.argmin()]
                self.best_ns = int(makespans.min())
            self.num_samples += len(mappings)
            if self.best is not None:
                report(self.options, "cross-entropy", self.begin, self.best_ns, self.bound_ns)
            if self._is_over():
                break
        return np.array(rewards)


def task_groups(problem: Problem, order: Sequence[int]) -> IntArray:
    """Return the group of each task, [num_tasks], numbered from 0, at most MAX_GROUPS.

    Groups are segments of `order`, a topological order, of about equal mean run time. Tasks of
    one colocation group are in the group of the first of them.
    """
    run_ns = problem.native.run_ns
    is_allowed = run_ns != IMPOSSIBLE
    mean = np.where(is_allowed, run_ns, 0).sum(axis=1) / np.maximum(1, is_allowed.sum(axis=1))
    colocation = problem.native.task_group
    first_of: dict[int, int] = {}
    leader = list(range(len(order)))
    for task in order:
        if colocation[task] >= 0:
            leader[task] = first_of.setdefault(colocation[task], task)
    # A small constant spreads tasks of no time too.
    weight = np.bincount(leader, mean + 1e-9 * (mean.sum() + 1.0), minlength=len(order))
    leaders = [task for task in order if leader[task] == task]
    ends = np.cumsum(weight[leaders])
    total = float(ends[-1]) if len(ends) else 1.0
    middle = (ends - weight[leaders] / 2) / total
    segment = np.minimum((middle * MAX_GROUPS).astype(np.int64), MAX_GROUPS - 1)
    _, segment = np.unique(segment, return_inverse=True)
    group = np.zeros(len(order), dtype=np.int64)
    group[leaders] = segment
    return group[leader]


def _sample(random: np.random.Generator, chances: FloatArray, count: int) -> IntArray:
    """Devices of the groups, [count, num_groups], drawn from `chances`."""
    limits = chances.cumsum(axis=1)[None, :, :-1]
    drawn = random.random((count, len(chances), 1))
    choices: IntArray = (drawn >= limits).sum(axis=2).astype(np.int64)
    return choices


def _reward(makespan_ns: IntArray, fits: npt.NDArray[np.bool_]) -> FloatArray:
    """-sqrt(seconds), or -inf where memory runs out or a tensor has no way."""
    reward = -np.sqrt(makespan_ns.astype(np.float64) / 1e9)
    return np.where(fits, reward, -np.inf)


def _elite_count(num_samples: int) -> int:
    return max(1, int(num_samples * _ELITE_RATIO))


def _learn(chances: FloatArray, choices: IntArray, rewards: FloatArray) -> FloatArray:
    """Move the distributions towards the elite; samples with the penalty teach nothing."""
    count = _elite_count(len(rewards))
    ranked = np.argsort(-rewards, kind="stable")[:count]
    elite = choices[ranked[np.isfinite(rewards[ranked])]]
    if not len(elite):
        return chances
    share = (elite[:, :, None] == np.arange(chances.shape[1])).mean(axis=0)
    learned: FloatArray = (1 - _SMOOTHING) * chances + _SMOOTHING * share
    return learned
