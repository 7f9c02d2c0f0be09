"""Walks over mappings from the MET mapping: simulated annealing and the biased (1+1) EA.

C++: src/search/mapping_search.cc. "DiviML: A Module-based Heuristic for Mapping Neural Networks
onto Heterogeneous Platforms", section V (arXiv 2308.00127): a string holds the device of each op in
breadth-first topological order, its fitness is the makespan of list scheduling in that same order.
Unlike DiviML, whose machines never ran out of memory, a mapping that overflows less always goes
before one that overflows more, so once a plan fits, it stays so; and the ops of a colocation group
are one position of the string. The solver `search` moves the order too and is better; these are
here to be compared with.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from heteroplace.native.core_search import Rule, search_mapping
from heteroplace.native.list import breadth_first_order, evaluate_order, fastest_mapping
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.feasibility import check_possible, no_placement_error
from heteroplace.solve.list.order_place import OrderPlaceSolver
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result, report
from heteroplace.solve.search.initial_solutions import INITIAL_SHARE


class MappingSolver:
    """Walks by a rule until the budget is used: `iterations`, the mappings tried, or the time."""

    name: ClassVar[str]
    rule: ClassVar[Rule]

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`."""
        begin = time.perf_counter()
        check_possible(problem)
        bound = lower_bound(problem, time_limit_s=options.part_s(INITIAL_SHARE)).ns
        order = breadth_first_order(problem.native)

        def progress(_evaluations: int, best_ns: int) -> None:
            report(options, self.name, begin, best_ns, bound)

        mapping = search_mapping(
            problem.native,
            initial_mapping(problem, order),
            order,
            rule=self.rule,
            max_evaluations=options.iterations,
            time_limit_s=max(0.01, options.time_limit_s - (time.perf_counter() - begin)),
            seed=options.seed,
            bound_ns=bound,
            progress=None if options.progress is None else progress,
        )
        best = evaluate_order(problem.native, mapping.placement, order)
        if best.violation:
            raise no_placement_error(problem)
        note = f"{mapping.num_evaluations} mappings tried"
        return make_result(
            problem,
            problem.native.plan(best.steps, f"{self.name} seed {options.seed}"),
            bound,
            self.name,
            time.perf_counter() - begin,
            was_interrupted=mapping.was_interrupted,
            candidates=((self.name, best.makespan_ns, note),),
        )


class SaSolver(MappingSolver):
    """Simulated annealing; its schedule of temperatures is not given in DiviML.

    Ours begins at 0.1 of the first makespan and falls geometrically to 1e-4 of that over the budget
    (evaluations if they are limited, else seconds); a move gives one random task another random
    device.
    """

    name = "sa"
    rule = "annealing"


class EaSolver(MappingSolver):
    """The biased (1+1) evolutionary algorithm, the best heuristic of DiviML.

    "Biased": it begins with MET, each op on its fastest device. A step gives each position of the
    string, with probability 1 / positions, a random device, and keeps the result if it is not
    worse. Steps that change nothing are drawn again and not counted.
    """

    name = "ea"
    rule = "evolution"


def initial_mapping(problem: Problem, order: Sequence[int]) -> tuple[int, ...]:
    """Return the MET mapping; where that overflows, Order-Place's if it overflows less."""
    native = problem.native
    fastest = fastest_mapping(native, order)
    lack = evaluate_order(native, fastest, order).violation
    if lack:
        filled = native.placement(OrderPlaceSolver().native_plan(problem).steps)
        if evaluate_order(native, filled, order).violation < lack:
            return filled
    return fastest
