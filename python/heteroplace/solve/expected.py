"""Choose between plans by the run time that is expected of them, with interference.

Solvers minimise a makespan of fixed task times, which is what bounds hold for. Where tasks slow
each other, a plan on several devices gains less than that says, and one device alone may be
quicker after all; so the solver's plan is compared with the best single device once more.
"""

from __future__ import annotations

from heteroplace.model.plan import Plan
from heteroplace.simulate.expect import Expectation, expect
from heteroplace.simulate.interference import Interference
from heteroplace.solve.list.single import single_makespans, single_plan
from heteroplace.solve.problem import Problem, SolveResult, make_result


def choose_expected(
    problem: Problem, result: SolveResult, interference: Interference, min_gain_ratio: float
) -> tuple[SolveResult, Expectation]:
    """Return the solver's result or the best single device's, and how long it will run.

    Parameters
    ----------
    result
        A plan for one item.
    min_gain_ratio
        Several devices are used only if they are expected to be quicker by more than this part.
    """
    expected = _expect(problem, result.plan, interference)
    singles = single_makespans(problem)
    if not singles or len(set(problem.native.placement(result.plan.steps))) == 1:
        return result, expected
    name = min(singles, key=lambda device: singles[device])
    plan = single_plan(problem, problem.cluster.device_id(name))
    assert isinstance(plan, Plan)  # it has a makespan
    alone = _expect(problem, plan, interference)
    if expected.makespan_ns < alone.makespan_ns * (1 - min_gain_ratio):
        return result, expected
    note = f"expected {alone.makespan_ns} ns, the plan above {expected.makespan_ns} ns"
    chosen = make_result(
        problem,
        plan,
        result.bound_ns,
        result.solver,
        result.wall_s,
        candidates=(*result.candidates, (f"single {name}, as expected", singles[name], note)),
    )
    return chosen, alone


def _expect(problem: Problem, plan: Plan, interference: Interference) -> Expectation:
    return expect(problem.graph, problem.cluster, problem.costs, plan, interference)
