"""MILP-SPLIT: modules solved exactly, joined by dynamic programming, with the proven bound.

DiviML, section IV.
"""

from __future__ import annotations

import time

from heteroplace.model.plan import Step
from heteroplace.solve.base import Problem, SolveOptions, SolveResult, make_result, report
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.cpsat import ITERATIONS_PER_DETERMINISTIC_SECOND
from heteroplace.solve.heft import check_possible, no_placement_error
from heteroplace.solve.search import MAX_TASKS_TO_BOUND, report_draft, run_search
from heteroplace.solve.split.chain import find_chain
from heteroplace.solve.split.chain_split import Budget, ChainSplit
from heteroplace.solve.starts import Starts

_SEARCH_SHARE = 0.1
"""Part of the time for a search of the whole."""


class SplitSolver:
    """Divide and conquer with exact parts."""

    name = "split"

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`."""
        begin = time.perf_counter()
        check_possible(problem)
        starts = Starts(problem)
        name, draft = starts.first()
        if draft.violation == 0:
            report_draft(problem, options, name, begin, draft)
        bound = 0
        if len(problem.graph.tasks) <= MAX_TASKS_TO_BOUND:
            bound = lower_bound(problem).ns
        drafts = [d for _, d in starts.drafts(_SEARCH_SHARE * options.time_limit_s)]
        found = run_search(
            problem, drafts or [draft], options, _SEARCH_SHARE * options.time_limit_s, bound
        )
        if found.draft.violation:
            raise no_placement_error(problem)
        best, bound = found.draft.steps, found.bound_ns
        stages = find_chain(problem)
        budget = Budget(
            begin + options.time_limit_s,
            None
            if options.iterations is None
            else options.iterations / ITERATIONS_PER_DETERMINISTIC_SECOND,
            options.seed,
            options.threads,
        )
        split = ChainSplit(problem, stages, budget)
        split.start(best)
        while True:
            bound = max(bound, split.bound_ns())
            report(options, "split", begin, split.best_ns(), bound)
            if not split.improve():
                break
        best = split.steps()
        wall = time.perf_counter() - begin
        return make_result(
            problem,
            problem.native.plan(best, f"split seed {options.seed}"),
            bound,
            self.name,
            wall,
            was_interrupted=split.was_interrupted,
        )
