"""solve_network: checked, explained, and chosen once: by expected run times where there are any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from heteroplace.errors import CostMismatchError
from heteroplace.files.solution_file import solution_from_json, solution_to_json
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.plan import Plan
from heteroplace.model.solution import RunTime
from heteroplace.report.headline import solution_headline
from heteroplace.simulate.expect import expect
from heteroplace.simulate.interference import Interference, no_interference
from heteroplace.solve.network_solution import choose_expected, expected_singles, solve_network
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult
from heteroplace.solve.solvers import get_solver

RunTimeOf = Callable[[Plan], RunTime]

CORES = Cluster(
    "two-cores",
    (Memory("ram", 10**9),),
    tuple(Device(f"cpu.{core}", "cpu", "llvm", 0, 0, (core,)) for core in range(2)),
    host=0,
)


@pytest.fixture
def problem() -> Problem:
    """Two tasks of 1000 ns that can run side by side."""
    builder = TaskGraphBuilder("two")
    source = builder.add_input("x", num_bytes=4)
    outputs = []
    for name in ("a", "b"):
        builder.add_task(Task(name, "op"), [source])
        outputs.append(builder.add_tensor(name, num_bytes=4))
    graph = builder.finalize(outputs)
    return Problem(graph, CORES, build_table(graph, CORES, lambda *_: Cost.measured(1000)))


def solved(problem: Problem, solver: str = "heft") -> SolveResult:
    return get_solver(solver).solve(problem, SolveOptions(time_limit_s=1.0))


def slowed(problem: Problem, slowdown: float) -> Interference:
    quiet = no_interference(problem.graph, problem.cluster)
    return replace(quiet, slowdown=np.full(quiet.slowdown.shape, slowdown))


def expecting(problem: Problem, slowdown: float) -> Callable[[Plan], RunTime]:
    known = slowed(problem, slowdown)
    return lambda plan: expect(problem.graph, problem.cluster, problem.costs, plan, known).run_time


def chosen_of(
    problem: Problem, result: SolveResult, run_time_of: RunTimeOf, ratio: float
) -> tuple[SolveResult, RunTime]:
    singles = expected_singles(problem, run_time_of)
    return choose_expected(problem, result, run_time_of(result.plan), singles, ratio)


def test_several_devices_stay_where_they_gain(problem: Problem) -> None:
    result = solved(problem)
    chosen, expected = chosen_of(problem, result, expecting(problem, 1.2), 0.02)
    assert chosen is result
    assert expected.expected_ns == pytest.approx(1200, rel=0.01)


def test_one_device_is_taken_where_the_others_would_only_disturb(problem: Problem) -> None:
    result = solved(problem)
    assert result.objective_ns == 1000
    chosen, expected = chosen_of(problem, result, expecting(problem, 2.5), 0.02)
    assert expected.expected_ns == 2000
    assert len(set(problem.native.placement(chosen.plan.steps))) == 1
    assert chosen.objective_ns == 2000
    assert chosen.bound_ns == result.bound_ns
    assert chosen.status == "feasible"
    assert "as expected" in chosen.candidates[-1][0]


def test_an_interrupted_solve_stays_one_where_one_device_is_taken(problem: Problem) -> None:
    result = replace(solved(problem), status="interrupted")
    chosen, _ = chosen_of(problem, result, expecting(problem, 2.5), 0.02)
    assert (chosen.objective_ns, chosen.status) == (2000, "interrupted")


def test_a_gain_below_the_least_one_is_left(problem: Problem) -> None:
    # 1960 ns expected against 2000 on one device.
    chosen, _ = chosen_of(problem, solved(problem), expecting(problem, 1.96), 0.03)
    assert len(set(problem.native.placement(chosen.plan.steps))) == 1


def test_nothing_is_measured_where_several_devices_gain_too_little(problem: Problem) -> None:
    # 1000 ns on two cores, 1010 on one: less than the least gain, whatever disturbs them.
    times = {"a": 1000, "b": 10}
    costs = build_table(
        problem.graph, CORES, lambda task, _: Cost.measured(times[problem.graph.tasks[task].name])
    )

    def measure() -> Interference:
        raise AssertionError("it is not needed")

    solution = solve_network(replace(problem, costs=costs), OPTIONS, measure)
    assert len(solution.devices_used) == 1


def test_a_plan_of_one_device_stays_where_no_other_is_quicker(problem: Problem) -> None:
    result = solved(problem, "single")
    chosen, expected = chosen_of(problem, result, expecting(problem, 5.0), 0.02)
    assert chosen is result
    assert expected.expected_ns == 2000


def by_single(problem: Problem, of_device: dict[int, int], of_several: int) -> RunTimeOf:
    """Expected times of plans on one device, and of all other plans."""

    def run_time_of(plan: Plan) -> RunTime:
        used = set(problem.native.placement(plan.steps))
        ns = of_device[used.pop()] if len(used) == 1 else of_several
        return RunTime(ns, ns, ns)

    return run_time_of


@pytest.mark.parametrize("solver", ["heft", "single"])
def test_every_single_device_is_compared_by_its_expected_time(
    problem: Problem, solver: str
) -> None:
    # Simulated, both devices take 2000 ns; expected, the second one is quicker than the plan.
    result = solved(problem, solver)
    chosen, expected = chosen_of(problem, result, by_single(problem, {0: 3000, 1: 1500}, 1900), 0.1)
    assert (expected.expected_ns, chosen.objective_ns) == (1500, 2000)
    assert set(problem.native.placement(chosen.plan.steps)) == {1}


def test_no_printed_time_of_a_single_device_is_below_the_one_of_the_plan(problem: Problem) -> None:
    times = by_single(problem, {0: 3000, 1: 1500}, 1900)
    found = solve_network(problem, OPTIONS, slowed(problem, 1.0), run_time_of=times)
    assert found.predicted_singles == (("cpu.0", 3000), ("cpu.1", 1500))
    assert found.expected_ns == 1500
    assert solution_headline(found) == (
        "one device is best: everything runs on cpu.1, predicted 1.50 us "
        "(at most 2.00x is possible, gap 50 %)"
    )
    assert solution_from_json(solution_to_json(found)) == found


def test_a_bound_above_the_expected_time_is_not_printed_beside_it(problem: Problem) -> None:
    # Runs may be quicker than costs: the bound of 1000 ns is of simulated times.
    times = by_single(problem, {0: 1900, 1: 1900}, 900)
    found = solve_network(problem, OPTIONS, slowed(problem, 1.0), run_time_of=times)
    assert found.bound_ns > found.expected_ns
    assert solution_headline(found) == (
        "predicted 2.11x as fast as the best single device: 900 ns on cpu.0+cpu.1, "
        "1.90 us on cpu.0 (no plan is faster)"
    )


OPTIONS = SolveOptions(time_limit_s=1.0, iterations=100, threads=1)


def test_a_solution_has_reasons_and_the_times_of_single_devices(problem: Problem) -> None:
    found = solve_network(problem, OPTIONS)
    assert len(found.plan.reasons) == 2
    assert found.singles == (("cpu.0", 2000), ("cpu.1", 2000))
    assert found.predicted_ns == found.bound_ns == 1000
    assert found.expected is None


def test_interference_is_measured_for_plans_on_several_devices_alone(problem: Problem) -> None:
    measured: list[int] = []

    def measure() -> Interference:
        measured.append(1)
        return slowed(problem, 1.2)

    alone = solve_network(problem, OPTIONS, measure, solver="single")
    assert (measured, alone.expected) == ([], None)
    several = solve_network(problem, OPTIONS, measure)
    assert measured == [1]
    assert several.expected_ns == pytest.approx(1200, rel=0.01)
    # What is known already is used for any plan.
    known = solve_network(problem, OPTIONS, slowed(problem, 5.0), solver="single")
    assert known.expected_ns == 2000


@pytest.mark.parametrize(("slowdown", "num_devices"), [(1.9, 2), (2.5, 1)])
def test_the_least_gain_is_asked_of_expected_times_not_of_simulated_ones(
    problem: Problem, slowdown: float, num_devices: int
) -> None:
    # Simulated the two devices gain 50 %, which a least gain of 60 % alone would refuse.
    careful = replace(OPTIONS, min_gain_ratio=0.6)
    assert len(solve_network(problem, careful).devices_used) == 1
    ratio = replace(OPTIONS, min_gain_ratio=0.04)
    found = solve_network(problem, ratio, slowed(problem, slowdown))
    assert len(found.devices_used) == num_devices


def test_a_plan_over_hosts_is_expected_to_run_as_its_messages_go() -> None:
    cluster = Cluster(
        "hosts",
        (Memory("ram.a", 10**9), Memory("ram.b", 10**9)),
        tuple(Device(name, "cpu", "llvm", 0, n, (0,), host=name) for n, name in enumerate("ab")),
        (Link("there", 0, 1, 10**9, 5000, "net"), Link("back", 1, 0, 10**9, 5000, "net")),
        host=0,
    )
    builder = TaskGraphBuilder("wide")
    source = builder.add_input("x", num_bytes=4)
    outputs = []
    for index in range(24):
        builder.add_task(Task(f"t{index}", "op"), [source])
        outputs.append(builder.add_tensor(f"t{index}", num_bytes=1000))
    graph = builder.finalize(outputs)
    costs = build_table(graph, cluster, lambda *_: Cost.given(3000))
    placed = solve_network(Problem(graph, cluster, costs), SolveOptions(), solver="heft")
    assert placed.expected is not None
    assert placed.expected.expected_ns < placed.predicted_ns
    near = Problem(graph, CORES, build_table(graph, CORES, lambda *_: Cost.given(3000)))
    assert solve_network(near, SolveOptions(), solver="heft").expected is None


def test_another_graph_of_equal_tasks_goes_at_the_pace_of_its_costs(problem: Problem) -> None:
    found = replace(slowed(problem, 2.0), alone_ns=np.full((2, 2), 1500.0))
    other = replace(problem.graph, name="other")
    moved = found.at_pace_of_costs(other)
    moved.check(other, problem.cluster)
    assert (found.pace(problem.costs).tolist(), moved.pace(problem.costs).tolist()) == (
        [1.5, 1.5],
        [1.0, 1.0],
    )
    assert (moved.slowdown == 2.0).all()
    with pytest.raises(CostMismatchError):
        moved.check(problem.graph, problem.cluster)
