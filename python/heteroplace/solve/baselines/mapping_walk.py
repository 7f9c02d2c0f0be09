"""What `sa` and `ea` have in common: MET mapping -> walk over mappings -> plan.

DiviML (section V): a string holds the device of each op in breadth-first topological order, its
fitness is the makespan of list scheduling in that same order. Unlike DiviML, whose machines never
ran out of memory, a mapping that overflows less always goes before one that overflows more, so
once a plan fits, it stays so; and ops with one `together` label are one position of the string.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from heteroplace.native.list import breadth_first_order, evaluate_order, fastest_mapping
from heteroplace.native.search import Rule, search_mapping
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.feasibility import check_possible, no_placement_error
from heteroplace.solve.list.order_place import order_place
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result, report


def walk_mappings(problem: Problem, options: SolveOptions, name: str, rule: Rule) -> SolveResult:
    """Walk from the MET mapping by `rule` until the budget is used; `name` is the solver's.

    Raises
    ------
    InfeasibleError
        Some task fits nowhere, or no mapping that was tried fits.
    """
    begin = time.perf_counter()
    check_possible(problem)
    bound = lower_bound(problem).ns
    order = breadth_first_order(problem.native)

    def progress(_evaluations: int, best_ns: int) -> None:
        report(options, name, begin, best_ns, bound)

    start = start_mapping(problem, order)
    found = search_mapping(
        problem.native,
        start,
        order,
        rule=rule,
        max_evaluations=options.iterations,
        time_limit_s=max(0.01, options.time_limit_s - (time.perf_counter() - begin)),
        seed=options.seed,
        bound_ns=bound,
        progress=None if options.progress is None else progress,
    )
    native_plan = evaluate_order(problem.native, found.placement, order)
    if native_plan.violation:
        raise no_placement_error(problem)
    plan = problem.native.plan(native_plan.steps, f"{name} seed {options.seed}")
    return make_result(
        problem,
        plan,
        bound,
        name,
        time.perf_counter() - begin,
        was_interrupted=found.was_interrupted,
        candidates=((name, native_plan.makespan_ns, f"{found.num_evaluations} mappings tried"),),
    )


def start_mapping(problem: Problem, order: Sequence[int]) -> tuple[int, ...]:
    """Return the MET mapping; where that overflows, Order-Place's if it overflows less."""
    native = problem.native
    fastest = fastest_mapping(native, order)
    lack = evaluate_order(native, fastest, order).violation
    if lack:
        filled = native.placement(order_place(problem).steps)
        if evaluate_order(native, filled, order).violation < lack:
            return filled
    return fastest
