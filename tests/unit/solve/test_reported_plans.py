"""Ctrl-C in a solver that does not catch it: the best plan that it reported is its result."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from heteroplace.solve import SOLVERS, Problem, SolveOptions, SolveResult, get_solver
from heteroplace.solve.problem import OBJECTIVES, report
from tests.instances import problem_of
from tests.strategies import random_instance

NAME = "interrupted"


class Interrupted:
    """It reports HEFT's plan, then that it has another phase without one, and is interrupted."""

    name = NAME
    objectives = OBJECTIVES

    def __init__(self, *, has_plan: bool) -> None:
        self._has_plan = has_plan

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """Never return."""
        heft = get_solver("heft").solve(problem, SolveOptions())
        if self._has_plan:
            report(options, "first", 0.0, heft.objective_ns, 1, lambda: heft.plan)
        report(options, "second", 0.0, None)
        raise KeyboardInterrupt


def random_case() -> Problem:
    """A problem of which HEFT finds a plan."""
    return problem_of(random_instance(Random(3)))


@pytest.fixture
def _forget() -> Iterator[None]:
    yield
    del SOLVERS[NAME]


@pytest.mark.usefixtures("_forget")
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_plan_that_was_reported_is_the_result(objective: str) -> None:
    problem = random_case()
    expected = get_solver("heft").solve(problem, SolveOptions())
    SOLVERS[NAME] = Interrupted(has_plan=True)
    phases: list[str] = []
    options = SolveOptions(objective, progress=lambda each: phases.append(each.phase))
    result = get_solver(NAME).solve(problem, options)
    assert result.plan.steps == expected.plan.steps
    assert (result.objective_ns, result.bound_ns) == (expected.objective_ns, 1)
    assert (result.status, result.solver) == ("interrupted", NAME)
    assert phases == ["first", "second"]


@pytest.mark.usefixtures("_forget")
def test_without_a_plan_the_interrupt_goes_on() -> None:
    SOLVERS[NAME] = Interrupted(has_plan=False)
    with pytest.raises(KeyboardInterrupt):
        get_solver(NAME).solve(random_case(), SolveOptions())
