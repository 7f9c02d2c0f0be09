"""The exact model as data, its rows, and what changes its optimum and what does not."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import InfeasibleError
from heteroplace.model.cluster import CONGESTION_MODES
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.solve import SolveOptions, get_solver
from heteroplace.solve.exact.formulate import formulate
from heteroplace.solve.exact.incumbent import EngineEnd
from heteroplace.solve.exact.mip_rows import MipRows
from heteroplace.solve.exact.schedule import Schedule, schedule_of_steps
from tests.exact_engines import Engine, by_cpsat, by_highs, every_engine, optimum
from tests.instances import cpu, diamond, gpus, instance, problem_of
from tests.reference.brute_force import optimal_makespan
from tests.reference.per_edge import split_tensors
from tests.strategies import Instance, instances, num_cases


def heft_schedule(case: Instance, dedup: bool) -> tuple[MipRows, Schedule, int] | None:
    """The rows with HEFT's plan as horizon, that plan, and its simulated makespan."""
    problem = problem_of(case)
    try:
        result = get_solver("heft").solve(problem, SolveOptions())
    except InfeasibleError:
        return None
    formulation = formulate(problem, dedup=dedup)
    schedule = schedule_of_steps(formulation, result.plan.steps)
    rows = MipRows(formulation, schedule.makespan_ns)
    return rows, schedule, result.objective_ns


@pytest.mark.parametrize("dedup", [True, False])
@given(case=instances(max_tasks=7, has_modes=True))
@num_cases(60)
def test_a_plan_satisfies_all_rows(dedup: bool, case: Instance) -> None:
    found = heft_schedule(case, dedup)
    if found is None:
        return
    rows, schedule, _ = found
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


@given(instances(max_tasks=7, has_modes=True))
@num_cases(60)
def test_a_plan_has_its_simulated_times_as_a_schedule(case: Instance) -> None:
    found = heft_schedule(case, dedup=True)
    if found is not None:
        rows, schedule, simulated = found
        assert schedule.makespan_ns == simulated
        assert rows.read(rows.values_of(schedule)).makespan_ns <= simulated


@given(instances(max_tasks=4, has_modes=True))
@num_cases(40)
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
    assert [(run.activity, run.place) for run in runs] == [
        (task, device) for task in range(4) for device in range(2)
    ]
    assert [(way.src, way.place, way.duration_ns) for way in channels] == [
        (1, 0, 2),
        (0, 1, 1),
    ] * 3
    assert (formulation.head_ns[3], formulation.tail_ns[0]) == (6, 6)
    assert len(formulate(problem_of(diamond()), dedup=False).transfers) == 4


def test_a_shared_unit_is_occupied_by_every_device_that_has_it() -> None:
    formulation = formulate(problem_of(instance([], {"a": (1, 1, 1)}, cpu())))
    assert [choice.resources for choice in formulation.choices] == [(0,), (1,), (0, 1)]


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


@every_engine
@given(case=instances(max_tasks=4, has_modes=True), factor=st.sampled_from([2, 10, 1000]))
@num_cases(15)
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
@num_cases(15)
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


@given(instances(max_tasks=5, has_modes=True))
@num_cases(20)
def test_more_congestion_is_never_shorter(case: Instance) -> None:
    found = []
    for mode in CONGESTION_MODES:
        channels = tuple(replace(link, channel=link.name) for link in case.cluster.links)
        cluster = replace(case.cluster, congestion=mode, links=channels)
        costs = replace(case.costs, cluster_digest=cluster.digest())
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
    assert "pairs ordered" in notes.get("Gurobi", "") + notes.get("HiGHS", "")
    again = get_solver("moirai").solve(problem_of(case), options)
    assert again.plan == result.plan
