"""GETF: groups of similar speed, the group of a task, and plans worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from heteroplace.errors import SolverError
from heteroplace.model.check import check_plan
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.solve import Problem, SolveOptions, get_solver
from heteroplace.solve.baselines.getf import GetfSolver, group_devices
from heteroplace.solve.baselines.getf_groups import (
    choose_groups,
    device_speeds,
    group_ratio,
    speed_groups,
    without_slow,
)
from tests.instances import gpus, instance, problem_of

ONE_FAST = (10, 25, 25, 25)
"""Speeds 1 and 0.4, so two groups: the slow one is faster in total, 1.2."""


def solved(problem: Problem, solver: GetfSolver | None = None) -> tuple[int, tuple[int, ...]]:
    """Return the makespan and the device of each task; the plan is checked."""
    result = (solver or get_solver("getf")).solve(problem, SolveOptions())
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    return result.objective_ns, result.plan.placement(len(problem.graph.tasks))


def test_the_speed_of_a_device_is_relative_to_the_fastest_for_each_task() -> None:
    run_ns = np.array([[10, 20, 20], [30, 30, 60], [IMPOSSIBLE, 5, 10], [0, 0, 0]])
    assert device_speeds(run_ns).tolist() == [1.0, 45 / 55, 0.5]


def test_devices_without_tasks_are_slower_than_all_others() -> None:
    speeds = device_speeds(np.array([[IMPOSSIBLE, 7], [IMPOSSIBLE, 0]]))
    assert speeds.tolist() == [0.0, 1.0]
    assert speed_groups(speeds, 2.0) == [[1]]


def test_groups_differ_by_log_m_over_log_log_m() -> None:
    assert [group_ratio(count) for count in (1, 2)] == [math.inf, math.inf]
    assert [group_ratio(count) for count in (4, 16)] == [2.0, 2.0]
    assert group_ratio(256) == pytest.approx(8 / 3)


def test_groups_count_from_the_fastest_device() -> None:
    # Moirai's servers: 2080 Ti, T4, P4 and 3060 Ti.
    assert speed_groups(np.array([1.0, 0.594, 0.4, 0.97]), 2.0) == [[0, 1, 3], [2]]
    assert speed_groups(np.array([0.25, 0.5, 1.0, 0.51]), 2.0) == [[2, 3], [1], [0]]
    assert speed_groups(np.array([0.2, 1.0]), math.inf) == [[0, 1]]


def test_devices_slower_than_a_part_of_m_are_dropped() -> None:
    assert without_slow(np.array([1.0, 0.25, 0.2, 0.5])).tolist() == [1.0, 0.25, 0.0, 0.5]


def test_the_group_of_largest_total_speed_is_taken_among_those_with_half_of_the_task() -> None:
    parts = np.array([[0.6, 0.4, 0.0], [0.5, 0.5, 0.0], [0.4, 0.6, 0.0], [0.4, 0.0, 0.6]])
    is_allowed = np.ones((4, 3), dtype=bool)
    num_bytes = np.ones(4, dtype=np.int64)
    wide = [9.0, 9.0, 9.0]
    assert choose_groups(parts, is_allowed, [1.0, 3.0, 2.0], num_bytes, wide) == [0, 0, 1, 1]
    # The fastest of equal ones.
    assert choose_groups(parts, is_allowed, [2.0, 2.0, 2.0], num_bytes, wide) == [0, 0, 0, 0]


def test_a_full_group_leaves_tasks_to_the_next_one() -> None:
    parts = np.array([[1.0, 0.0]] * 4)
    is_allowed = np.array([[True, True], [False, True], [True, True], [True, True]])
    num_bytes = np.full(4, 10)
    assert choose_groups(parts, is_allowed, [1.0, 1.0], num_bytes, [20.0, 20.0]) == [0, 1, 0, 1]
    # Without room anywhere the rule of the paper decides.
    assert choose_groups(parts, is_allowed, [1.0, 1.0], num_bytes, [0.0, 0.0]) == [0, 1, 0, 0]


def test_independent_tasks_are_shared_out_by_total_speed() -> None:
    # 220 ns of work on a total speed of 2.2: 10 tasks on the fast device, 4 on each slow one.
    run_ns = {f"t{index}": ONE_FAST for index in range(22)}
    makespan, placement = solved(problem_of(instance([], run_ns, gpus({}, 4))))
    assert [placement.count(device) for device in range(4)] == [10, 4, 4, 4]
    assert makespan == 100


def test_the_longest_path_takes_the_fast_group() -> None:
    # Any part of the path on a slow device makes T longer than 40; the path fills the fast one.
    links = {(src, dst): 1 for src in range(4) for dst in range(4) if src != dst}
    run_ns = {name: ONE_FAST for name in ("a", "b", "c", "d", "x", "y", "z")}
    edges = [("a", "b"), ("b", "c"), ("c", "d")]
    makespan, placement = solved(problem_of(instance(edges, run_ns, gpus(links, 4))))
    assert placement[:4] == (0, 0, 0, 0)
    assert sorted(placement[4:]) == [1, 2, 3]
    assert makespan == 40


def test_paths_stay_on_a_device_of_their_group_where_links_are_slow() -> None:
    # Both devices are of one group, so that ETF sees the transfers of 100 ns.
    links = {(0, 1): 1, (1, 0): 1}
    run_ns = {f"{path}{index}": (10, 11) for index in range(3) for path in "pq"}
    edges = [(f"{path}{index}", f"{path}{index + 1}") for path in "pq" for index in range(2)]
    problem = problem_of(instance(edges, run_ns, gpus(links, 2), num_bytes=100))
    makespan, placement = solved(problem)
    assert placement[::2] == (0, 0, 0)
    assert placement[1::2] == (1, 1, 1)
    assert makespan == 33


def test_the_rule_of_the_paper_starts_a_long_task_on_an_idle_slow_device() -> None:
    # By finish the second long task waits for the fast device; by start it does not.
    run_ns = {"first": (20, 41), "second": (20, 41), "short": (4, 3)}
    problem = problem_of(instance([], run_ns, gpus({}, 2)))
    assert solved(problem) == (40, (0, 0, 1))
    assert solved(problem, GetfSolver("start")) == (41, (0, 1, 0))


def test_a_rule_must_have_a_name() -> None:
    with pytest.raises(SolverError, match=r"no rule 'end'; there are: finish, start"):
        GetfSolver("end")


def test_a_dropped_device_takes_what_the_others_have_no_room_for() -> None:
    run_ns = {f"t{index}": (10, 10, 40) for index in range(9)}
    ample = problem_of(instance([], run_ns, gpus({}, 3)))
    assert sorted(solved(ample)[1]) == [0] * 5 + [1] * 4
    tight = problem_of(instance([], run_ns, gpus({}, 3, 450), weight_bytes=100))
    makespan, placement = solved(tight)
    assert [placement.count(device) for device in range(3)] == [4, 4, 1]
    assert makespan == 40


def test_a_task_that_no_group_can_run_has_no_groups() -> None:
    run_ns = {"a": (10, 10, 40), "b": (None, None, 40)}
    problem = problem_of(instance([], run_ns, gpus({}, 3)))
    assert group_devices(problem, [[0, 1]], 1.0) is None
    assert solved(problem)[1] == (0, 2)
