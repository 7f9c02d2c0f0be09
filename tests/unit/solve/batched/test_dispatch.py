"""Several items dispatched: valid plans, no idle device beside what is ready, near the bound."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.bench.suites.batches import with_batches
from heteroplace.errors import InfeasibleError, PlanError, SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.model.plan import Run
from heteroplace.native.simulate import simulate_steps
from heteroplace.simulate.throughput import throughput_ns
from heteroplace.solve import Problem, SolveOptions, get_solver
from heteroplace.solve.batched.dispatch import dispatched
from heteroplace.solve.deadline import Deadline, TimeUpError
from tests.instances import gpus, instance, problem_of
from tests.strategies import num_cases, random_instance
from tests.unit.solve.batched.test_divi import free, nodes


def there_and_back() -> Problem:
    """A chain a, b, c of 4, 8 and 4 ns; b is on the other device, and a byte takes 1 ns."""
    times = {"a": (4, 90), "b": (90, 8), "c": (4, 90)}
    return free(instance([("a", "b"), ("b", "c")], times, gpus({(0, 1): 1, (1, 0): 1}, 2)))


def test_a_device_that_is_first_and_last_does_not_wait_for_what_is_between() -> None:
    problem = there_and_back()
    plan = get_solver("heft").solve(problem, SolveOptions()).plan
    item_ns = throughput_ns(problem.graph, problem.cluster, problem.costs, plan)
    steps = dispatched(problem, plan.steps, 10)
    check_plan(problem.graph, problem.cluster, problem.costs, replace(plan, steps=steps, items=10))
    makespan = simulate_steps(problem.native, steps, 10).makespan_ns
    # Nothing is idle but for the first and the last item.
    assert item_ns == 8
    assert makespan == plan_ns(problem, plan.steps) + 9 * item_ns


def plan_ns(problem: Problem, steps: object) -> int:
    return simulate_steps(problem.native, steps, 1).makespan_ns  # type: ignore[arg-type]


@given(seed=st.integers(0, 10**6), items=st.integers(1, 5))
@num_cases(60)
def test_dispatched_plans_are_valid_and_not_below_the_load(seed: int, items: int) -> None:
    case = random_instance(Random(seed), 6)
    problem = problem_of(case)
    try:
        plan = get_solver("heft").solve(problem, SolveOptions(time_limit_s=1)).plan
    except (InfeasibleError, SolverLimitError):
        return
    steps = dispatched(problem, plan.steps, items)
    assert len(steps) == items * len(plan.steps)
    room = tuple(replace(memory, bytes=2**60) for memory in problem.cluster.memories)
    cluster = replace(problem.cluster, memories=room)
    several = replace(plan, steps=steps, items=items, cluster_digest=cluster.digest())
    check_plan(problem.graph, cluster, replace(problem.costs, devices=cluster.identities), several)
    item_ns = throughput_ns(problem.graph, problem.cluster, problem.costs, plan)
    assert items * item_ns <= simulate_steps(problem.native, steps, items).makespan_ns


def test_batches_run_together() -> None:
    problem = with_batches(nodes((3, 5, 4, 2)), 2)
    plan = get_solver("heft").solve(problem, SolveOptions()).plan
    steps = dispatched(problem, plan.steps, 6, 2)
    runs = [step.items for step in steps if isinstance(step, Run) and step.task == 0]
    assert sorted(runs) == [(0, 1), (2, 3), (4, 5)]
    check_plan(problem.graph, problem.cluster, problem.costs, replace(plan, steps=steps, items=6))


class Looks(Deadline):
    """A deadline that passes after so many looks at it."""

    def check(self) -> None:
        """Count down."""
        object.__setattr__(self, "at_s", self.at_s - 1)
        if self.at_s < 0:
            raise TimeUpError


def test_a_deadline_leaves_the_first_stagger() -> None:
    problem = there_and_back()
    plan = get_solver("heft").solve(problem, SolveOptions()).plan
    late = dispatched(problem, plan.steps, 4, 1, Looks(1))
    best = dispatched(problem, plan.steps, 4)
    ends = [simulate_steps(problem.native, steps, 4).makespan_ns for steps in (best, late)]
    assert ends == sorted(ends)


def test_a_dispatch_that_cannot_end_is_given_up_on_the_way() -> None:
    problem = there_and_back()
    plan = get_solver("heft").solve(problem, SolveOptions()).plan
    looks = Looks(10)
    with pytest.raises(TimeUpError):
        dispatched(problem, plan.steps, 4_000, 1, looks)
    assert looks.at_s == -1, "looked at again and again, not at the beginning alone"


def test_batches_that_do_not_make_up_the_items_are_named() -> None:
    problem = there_and_back()
    plan = get_solver("heft").solve(problem, SolveOptions()).plan
    with pytest.raises(PlanError, match="batches of 2 do not make up 3 items"):
        dispatched(problem, plan.steps, 3, 2)
