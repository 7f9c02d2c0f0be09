"""The bound by the work of the tasks: never above the optimum, exact where nothing else counts."""

from __future__ import annotations

import pytest
from hypothesis import given

from heteroplace.parts.throughput.steady_state import work_bound as module
from heteroplace.parts.throughput.steady_state.work_bound import work_bound
from heteroplace.solve import get_solver
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.problem import SolveOptions
from tests.instances import cpu, gpus, instance, problem_of
from tests.reference.throughput import least_item_ns
from tests.strategies import Instance, exact_cases
from tests.unit.solve.throughput.test_throughput import cases

SOON = Deadline.after(3600.0)


@exact_cases(100)
@given(case=cases(max_tasks=4))
def test_the_bound_of_the_work_is_at_most_the_optimum(case: Instance) -> None:
    best = least_item_ns(case.graph, case.cluster, case.costs)
    problem = problem_of(case)
    assert best is not None and work_bound(problem, SOON) <= best
    if len(case.graph.tasks) == 1:
        assert work_bound(problem, SOON) == min(t for t in problem.native.run_ns[0] if t >= 0)


def tasks_apart(times: dict[str, tuple[int | None, ...]], num_devices: int) -> Instance:
    return instance([], times, gpus({}, num_devices))


def test_equal_devices_share_the_work() -> None:
    case = tasks_apart({f"t{i}": (6, 6, 6) for i in range(10)}, 3)
    assert work_bound(problem_of(case), Deadline.after(0.0)) == 20


def test_prices_tell_unlike_devices_apart() -> None:
    """One device is three times as fast: it takes three quarters of the tasks."""
    case = tasks_apart({f"t{i}": (10, 30) for i in range(100)}, 2)
    bound = work_bound(problem_of(case), SOON)
    assert 740 <= bound <= 750


def test_a_task_that_takes_long_everywhere_is_a_bound() -> None:
    case = tasks_apart({"long": (50, 40), "short": (None, 1)}, 2)
    assert work_bound(problem_of(case), SOON) == 40


def test_all_cores_together_are_busy_together() -> None:
    cluster = cpu(2)
    times = dict.fromkeys(("a", "b"), (10, 10, 6))
    case = instance([], times, cluster)
    assert len(cluster.devices) == 3 and len(cluster.units) == 2
    assert work_bound(problem_of(case), SOON) == 10


def test_tasks_in_blocks_are_added_up_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    case = tasks_apart({f"t{i}": (3 + i % 5, 9 - i % 4) for i in range(40)}, 2)
    problem = problem_of(case)
    whole = work_bound(problem, SOON)
    monkeypatch.setattr(module, "_BLOCK", 6)
    assert work_bound(problem, SOON) == whole > 0


def test_throughput_on_many_devices_has_a_bound() -> None:
    names = [f"t{index}" for index in range(900)]
    case = tasks_apart({name: (2,) * 300 for name in names}, 300)
    options = SolveOptions(objective="throughput", time_limit_s=5.0)
    assert get_solver("throughput").solve(problem_of(case), options).bound_ns >= 6
