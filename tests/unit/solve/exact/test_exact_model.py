"""The exact model as data, its rows, and what changes its optimum and what does not."""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from heteroplace.errors import SolverError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import CONGESTION_MODES
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.solve import ProgressReport, SolveOptions, get_solver, lower_bound
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.exact.cpsat import run_cpsat
from heteroplace.solve.exact.cpsat_engine import solve_by_cpsat
from heteroplace.solve.exact.formulate import formulate
from heteroplace.solve.exact.incumbent import EngineEnd
from heteroplace.solve.exact.lazy_rows import solve_lazily
from heteroplace.solve.exact.mip_rows import MipRows
from heteroplace.solve.exact.schedule import Schedule, schedule_of_steps
from heteroplace.solve.lp.gurobi import why_no_gurobi
from heteroplace.solve.lp.highs import HighsEngine
from tests.exact_engines import Engine, by_cpsat, by_highs, every_engine, needs_gurobi, optimum
from tests.instances import cpu, diamond, gpus, instance, problem_of
from tests.interrupts import ctrl_c_after
from tests.reference.brute_force import optimal_makespan
from tests.reference.per_edge import split_tensors
from tests.strategies import Instance, exact_cases, instances
from zoo.graphs.catalogue import rwnn
from zoo.graphs.rwnn import RwnnStack


@given(instances(max_tasks=7, has_modes=True))
@exact_cases(50)
def test_a_plan_is_a_schedule_of_its_simulated_times_that_satisfies_all_rows(
    case: Instance,
) -> None:
    problem = problem_of(case)
    result = get_solver("heft").solve(problem, SolveOptions())
    for dedup in (True, False):
        formulation = formulate(problem, dedup=dedup)
        schedule = schedule_of_steps(formulation, result.plan.steps)
        rows = MipRows(formulation, schedule.makespan_ns)
        if dedup:
            assert schedule.makespan_ns == result.objective_ns
            assert rows.read(rows.values_of(schedule)).makespan_ns <= result.objective_ns
        check_rows(rows, schedule)


def check_rows(rows: MipRows, schedule: Schedule) -> None:
    """Every pair has its rows, and the schedule satisfies all of them."""
    for one, two in itertools.combinations(range(len(schedule.chosen)), 2):
        rows.add_pair(one, two)
    values = rows.values_of(schedule)
    program = rows.program
    activity = program.matrix() @ values
    slack = 1e-6
    assert (activity >= np.array(program.row_lower) - slack).all()
    assert (activity <= np.array(program.row_upper) + slack).all()
    assert (values >= np.array(program.lower) - slack).all()
    assert (values <= np.array(program.upper) + slack).all()
    assert rows.overlaps(values) == []


@pytest.mark.costly
@given(instances(max_tasks=4, has_modes=True))
@exact_cases(40)
def test_transfers_per_edge_equal_brute_force_on_split_tensors(case: Instance) -> None:
    split = split_tensors(case)
    expected = optimal_makespan(split.graph, split.cluster, split.costs)
    for engine in (by_cpsat, by_highs):
        assert optimum(problem_of(case), engine, dedup=False) == expected


def test_choices_and_transfers_of_the_diamond() -> None:
    formulation = formulate(problem_of(diamond()))
    # a, b, c go to either memory, all on either device; k = l is no channel.
    runs = formulation.choices[: 2 * 4]
    channels = formulation.choices[2 * 4 :]
    assert [(run.activity, run.where) for run in runs] == [
        (task, device) for task in range(4) for device in range(2)
    ]
    assert [(way.src, way.where, way.duration_ns) for way in channels] == [
        (1, 0, 2),
        (0, 1, 1),
    ] * 3
    assert (formulation.head_ns[3], formulation.tail_ns[0]) == (6, 6)
    assert len(formulate(problem_of(diamond()), dedup=False).transfers) == 4


def test_a_shared_unit_is_occupied_by_every_device_that_has_it() -> None:
    formulation = formulate(problem_of(instance([], {"a": (1, 1, 1)}, cpu())))
    assert [choice.resources for choice in formulation.choices] == [(0,), (1,), (0, 1)]


@pytest.mark.costly
def test_order_rows_are_made_only_for_pairs_that_a_solution_overlaps() -> None:
    run_ns: dict[str, tuple[int | None, ...]] = {f"t{i}": (3, 4) for i in range(8)}
    edges = [("t0", f"t{i}") for i in range(1, 8)]
    formulation = formulate(problem_of(instance(edges, run_ns, gpus({(0, 1): 10}, 2))))
    rows = MipRows(formulation, formulation.longest_ns)
    assert rows.num_pairs == 0
    before = rows.program.num_rows
    rows.add_pair(1, 2)
    # One bit; two rows for each of the two devices.
    assert (rows.num_pairs, rows.program.num_rows - before) == (1, 4)
    end = by_highs(formulation, None)
    assert (end.bound_ns, end.schedule and end.schedule.makespan_ns) == (16, 16)
    # Only t1 to t7 are unordered.
    assert 0 < num_pairs(end) <= 7 * 6 // 2
    assert num_pairs(by_highs(formulate(problem_of(diamond())), None)) == 0


def num_pairs(end: EngineEnd) -> int:
    """How many pairs a note says."""
    return int(end.note.removesuffix(" pairs ordered").split(", ")[-1])


@pytest.mark.costly
@every_engine
@given(case=instances(max_tasks=4, has_modes=True), factor=st.sampled_from([2, 10, 1000]))
@exact_cases(15)
def test_times_and_optimum_scale_together(engine: Engine, case: Instance, factor: int) -> None:
    before = optimum(problem_of(scaled(case, 1)), engine)
    after = optimum(problem_of(scaled(case, factor)), engine)
    assert after == (None if before is None else before * factor)


def scaled(case: Instance, factor: int) -> Instance:
    """Runs, latencies and times per byte so many times as long; a byte takes 1 ns at first."""
    links = tuple(
        replace(link, bytes_per_second=10**9 // factor, latency_ns=link.latency_ns * factor)
        for link in case.cluster.links
    )
    cluster = replace(case.cluster, links=links)

    def cost(task: int, device: int) -> Cost:
        time_ns = case.costs.run_ns(task, device)
        return Cost.unsupported("no kernel") if time_ns is None else Cost.given(time_ns * factor)

    return Instance(case.graph, cluster, build_table(case.graph, cluster, cost))


@every_engine
@given(case=instances(max_tasks=4, has_modes=True), data=st.data())
@exact_cases(15)
def test_names_of_devices_and_tasks_do_not_matter(
    engine: Engine, case: Instance, data: st.DataObject
) -> None:
    devices = data.draw(st.permutations(range(len(case.cluster.devices))))
    cluster = replace(case.cluster, devices=tuple(case.cluster.devices[d] for d in devices))
    graph, order = reordered(case, data)

    def cost(task: int, device: int) -> Cost:
        time_ns = case.costs.run_ns(order[task], devices[device])
        return Cost.unsupported("no kernel") if time_ns is None else Cost.given(time_ns)

    other = Instance(graph, cluster, build_table(graph, cluster, cost))
    assert optimum(problem_of(other), engine) == optimum(problem_of(case), engine)


def reordered(case: Instance, data: st.DataObject) -> tuple[TaskGraph, list[int]]:
    """The graph in another topological order, and the old id of each task."""
    graph = case.graph
    order: list[int] = []
    while len(order) < len(graph.tasks):
        ready = [
            task
            for task, before in enumerate(graph.predecessors)
            if task not in order and set(before) <= set(order)
        ]
        order.append(data.draw(st.sampled_from(ready)))
    builder = TaskGraphBuilder(graph.name)
    names: dict[int, str] = {}
    for tensor in graph.inputs:
        value = graph.tensors[tensor]
        names[tensor] = builder.add_input(value.name, value.shape, value.dtype)
    for position, task in enumerate(order):
        old = graph.tasks[task]
        new = Task(
            f"new{position}",
            old.op,
            weight_bytes=old.weight_bytes,
            workspace_bytes=old.workspace_bytes,
            together=old.together,
        )
        builder.add_task(new, [names[tensor] for tensor in graph.task_inputs[task]])
        for tensor in graph.task_outputs[task]:
            value = graph.tensors[tensor]
            names[tensor] = builder.add_tensor(new.name, value.shape, value.dtype)
    return builder.finalize([names[tensor] for tensor in graph.outputs]), order


@pytest.mark.costly
@given(instances(max_tasks=5, has_modes=True))
@exact_cases(20)
def test_more_congestion_is_never_shorter(case: Instance) -> None:
    found = []
    for mode in CONGESTION_MODES:
        channels = tuple(replace(link, channel=link.name) for link in case.cluster.links)
        cluster = replace(case.cluster, congestion=mode, links=channels)
        costs = replace(case.costs, devices=cluster.identities)
        found.append(optimum(problem_of(Instance(case.graph, cluster, costs)), by_highs) or 0)
    assert found == sorted(found)


def test_moirai_says_which_engine_it_used() -> None:
    run_ns: dict[str, tuple[int | None, ...]] = {f"t{i}": (3 + i, 5) for i in range(6)}
    edges = [("t0", f"t{i}") for i in range(1, 5)] + [(f"t{i}", "t5") for i in range(1, 5)]
    case = instance(edges, run_ns, gpus({(0, 1): 5, (1, 0): 5}, 2))
    options = SolveOptions(threads=1, iterations=3000)
    result = get_solver("moirai").solve(problem_of(case), options)
    expected = get_solver("cpsat").solve(problem_of(case), options)
    assert (result.objective_ns, result.status) == (expected.objective_ns, "optimal")
    notes = {name: note for name, _, note in result.candidates}
    assert "search" in notes
    assert "pairs ordered" in notes["Gurobi"] or "CP-SAT" in notes
    again = get_solver("moirai").solve(problem_of(case), options)
    assert again.plan == result.plan


@every_engine
def test_one_byte_too_many_is_too_many(engine: Engine) -> None:
    # Less than the tolerance of rows: the placement is ruled out when it turns out not to fit.
    weights = 5 * 10**9
    cluster = gpus({}, 2, capacity=2 * (weights + 10) - 1)
    run_ns: dict[str, tuple[int | None, ...]] = {"a": (1, 5), "b": (1, 5)}
    case = instance([], run_ns, cluster, weight_bytes=weights)
    assert optimum(problem_of(case), engine) == 5


def test_interrupt_ends_the_rounds_with_a_proven_bound() -> None:
    problem = rwnn(RwnnStack("ba", 32, 1))
    start = get_solver("heft").solve(problem, SolveOptions())
    formulation = formulate(problem, lower_bound(problem).ns)
    known = schedule_of_steps(formulation, start.plan.steps)
    with ctrl_c_after(0.5):
        end = solve_lazily(formulation, HighsEngine(), known, SolveOptions(), 5)
    assert end.was_interrupted
    assert formulation.bound_ns <= end.bound_ns <= start.objective_ns


@pytest.fixture
def press_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ctrl-C 0.3 seconds after each solve of CP-SAT began, if it lasts so long."""
    solve = cp_model.CpSolver.solve

    def pressed(*arguments: Any) -> Any:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            return solve(*arguments)
        finally:
            timer.cancel()

    monkeypatch.setattr(cp_model.CpSolver, "solve", pressed)
    with ctrl_c_after(600):
        yield


@pytest.mark.usefixtures("press_ctrl_c")
def test_interrupt_during_cpsat_keeps_the_plan_and_is_told() -> None:
    problem = rwnn(RwnnStack("ba", 32, 1))
    start = get_solver("heft").solve(problem, SolveOptions())
    options = SolveOptions(threads=2, time_limit_s=20)
    end = run_cpsat(problem, start.plan.steps, options, Deadline.after(20), 0)
    assert end.was_interrupted
    assert end.steps is not None


@pytest.mark.costly
@pytest.mark.usefixtures("press_ctrl_c")
@pytest.mark.parametrize("name", ["auto", "cpsat"])
def test_interrupt_during_cpsat_ends_the_solver_around_it(name: str) -> None:
    problem = rwnn(RwnnStack("ba", 32, 1))
    options = SolveOptions(threads=2, time_limit_s=8)
    result = get_solver(name).solve(problem, options)
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    assert result.status == "interrupted"


@pytest.mark.parametrize(("found", "expected"), [(9.0, 9), (math.inf, 5), (-math.inf, 5), (1e9, 5)])
def test_what_cpsat_proves_counts_also_without_a_plan(
    found: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(cp_model.CpSolver):
        best_objective_bound = found

        def solve(self, *_: Any) -> cp_model.CpSolverStatus:
            return cp_model.UNKNOWN

    monkeypatch.setattr(cp_model, "CpSolver", Late)
    formulation = formulate(problem_of(diamond()), 5)
    end = solve_by_cpsat(formulation, None, SolveOptions(), Deadline.after(9))
    assert (end.schedule, end.bound_ns) == (None, expected)


def test_progress_tells_plan_and_bound_of_each_round() -> None:
    seen: list[ProgressReport] = []
    problem = rwnn(RwnnStack("er", 10, 1))
    options = SolveOptions(threads=1, progress=seen.append, engine="highs")
    result = get_solver("moirai").solve(problem, options)
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    rounds = [report for report in seen if report.phase != "search"]
    assert seen[0].phase == "search"
    assert len(rounds) > 1
    bounds = [report.bound_ns for report in seen]
    assert bounds == sorted(bounds)
    # Within what a row may be wrong by, the plan is proven.
    assert result.bound_ns == bounds[-1]
    assert 0 <= result.gap < 1e-5


@needs_gurobi
def test_a_licence_that_is_too_small_is_said_and_cpsat_used() -> None:
    if why_no_gurobi() is None:
        pytest.skip("the licence takes models of any size")
    problem = rwnn(RwnnStack("er", 10, 10))
    options = SolveOptions(threads=1, time_limit_s=2)
    result = get_solver("moirai").solve(problem, options)
    notes = {name: note for name, _, note in result.candidates}
    assert "licence does not take this model" in notes["Gurobi"]
    assert "CP-SAT" in notes


def test_moirai_refuses_large_graphs() -> None:
    run_ns: dict[str, tuple[int | None, ...]] = {f"t{i}": (9, 10, 11) for i in range(501)}
    case = instance([], run_ns, cpu())
    with pytest.raises(SolverError, match="at most 500 tasks, graph 'worked' has 501"):
        get_solver("moirai").solve(problem_of(case), SolveOptions())


@every_engine
@given(case=instances(max_tasks=4, is_memory_tight=True, has_modes=True), data=st.data())
@exact_cases(15)
def test_less_memory_or_bandwidth_is_never_shorter(
    engine: Engine, case: Instance, data: st.DataObject
) -> None:
    memories = tuple(
        replace(memory, bytes=data.draw(st.integers(1, memory.bytes)))
        for memory in case.cluster.memories
    )
    # All alike, so that routes stay what they are.
    links = tuple(
        replace(link, bytes_per_second=link.bytes_per_second // 2) for link in case.cluster.links
    )
    cluster = replace(case.cluster, memories=memories, links=links)
    costs = replace(case.costs, devices=cluster.identities)
    before = optimum(problem_of(case), engine)
    after = optimum(problem_of(Instance(case.graph, cluster, costs)), engine)
    assert after is None or (before is not None and before <= after)
