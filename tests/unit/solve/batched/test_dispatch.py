"""Several items dispatched: valid plans, no idle device beside what is ready, near the bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import PlanError
from heteroplace.model.check import check_plan
from heteroplace.model.plan import Run, Step
from heteroplace.model.step_values import makers, occupied
from heteroplace.native.simulate import simulate_steps
from heteroplace.parts.throughput.batched import dispatch
from heteroplace.parts.throughput.batched.dispatch import STAGGERS, dispatched
from heteroplace.simulate.throughput import throughput_ns
from heteroplace.solve import Problem, SolveOptions, get_solver
from heteroplace.solve.deadline import Deadline, TimeUpError
from tests.instances import gpus, instance, problem_of
from tests.strategies import exact_cases, random_instance
from tests.unit.solve.batched.test_divi import free, nodes
from zoo.graphs.batches import with_batches


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
@exact_cases(60)
def test_dispatched_plans_are_valid_and_no_device_is_idle_beside_what_is_ready(
    seed: int, items: int
) -> None:
    case = random_instance(Random(seed), 6)
    problem = problem_of(case)
    plan = get_solver("heft").solve(problem, SolveOptions(time_limit_s=1)).plan
    steps = dispatched(problem, plan.steps, items)
    assert len(steps) == items * len(plan.steps)
    room = tuple(replace(memory, bytes=2**60) for memory in problem.cluster.memories)
    cluster = replace(problem.cluster, memories=room)
    several = replace(plan, steps=steps, items=items, cluster_digest=cluster.digest())
    check_plan(problem.graph, cluster, replace(problem.costs, devices=cluster.identities), several)
    item_ns = throughput_ns(problem.graph, problem.cluster, problem.costs, plan)
    assert items * item_ns <= simulate_steps(problem.native, steps, items).makespan_ns
    for _, idle_ns in idle_beside_ready_runs(problem, steps, items):
        assert idle_ns == 0


def idle_beside_ready_runs(
    problem: Problem, steps: Sequence[Step], items: int
) -> Iterator[tuple[int, int]]:
    """Of each run on a device of one unit how long that was idle when the run could have begun."""
    times = simulate_steps(problem.native, steps, items)
    starts, finishes = times.start_ns.tolist(), times.finish_ns.tolist()
    used = [occupied(problem.graph, problem.cluster, step) for step in steps]
    for index, before in enumerate(makers(problem.graph, problem.cluster, steps)):
        if isinstance(steps[index], Run) and len(used[index]) == 1:
            ready_ns = max((finishes[maker] for maker in before), default=0)
            busy_ns = sum(
                max(0, min(finishes[other], starts[index]) - max(starts[other], ready_ns))
                for other in range(len(steps))
                if other != index and used[index][0] in used[other]
            )
            yield index, starts[index] - ready_ns - busy_ns


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


def beside_a_chain() -> Problem:
    """One device runs a, of 12 ns, and c, of 1, behind which d takes 6 on the other one."""
    times = {"a": (90, 12), "c": (90, 1), "d": (6, 90)}
    return problem_of(instance([("c", "d")], times, gpus({(0, 1): 10, (1, 0): 10}, 2)))


def test_the_best_stagger_is_kept_and_past_a_deadline_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = beside_a_chain()
    plan = get_solver("heft").solve(problem, SolveOptions()).plan
    best = dispatched(problem, plan.steps, 4)
    late = dispatched(problem, plan.steps, 4, 1, Looks(1))
    makespans = []
    for share in STAGGERS:
        monkeypatch.setattr(dispatch, "STAGGERS", (share,))
        steps = dispatched(problem, plan.steps, 4)
        makespans.append(simulate_steps(problem.native, steps, 4).makespan_ns)
    ends = [simulate_steps(problem.native, steps, 4).makespan_ns for steps in (best, late)]
    assert ends == [min(makespans), makespans[0]] == [59, 64]


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
