"""Solvers that look for a mapping: metis, sa, ea."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import GraphError, InfeasibleError
from heteroplace.model.check import check_plan
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.native.core_search import search_mapping
from heteroplace.native.list import (
    breadth_first_order,
    evaluate_order,
    fastest_mapping,
    rank_order,
    upward_ranks,
)
from heteroplace.solve import (
    Problem,
    ProgressReport,
    SolveOptions,
    SolveResult,
    get_solver,
    lower_bound,
)
from heteroplace.solve.baselines.mapping_walk import initial_mapping
from heteroplace.solve.feasibility import check_possible, nearest_allowed
from tests.instances import cpu, diamond, gpus, instance, problem_of
from tests.interrupts import ctrl_c_after
from tests.reference.brute_force import optimal_makespan
from tests.strategies import Instance, exact_cases, instances, num_cases
from tests.unit.solve.bounds.test_lagrangian import memory_forced_cut
from tests.unit.solve.test_determinism import layered
from tests.unit.solve.test_worked import (
    disconnected,
    empty_graph,
    many_outputs,
    one_task,
    zero_sizes,
)

NAMES = ("metis", "sa", "ea")
SEARCHES = ("sa", "ea")


def solve(case: Instance, name: str, iterations: int = 300, seed: int = 0) -> SolveResult:
    options = SolveOptions(iterations=iterations, seed=seed, time_limit_s=60)
    result = get_solver(name).solve(problem_of(case), options)
    check_plan(case.graph, case.cluster, case.costs, result.plan)
    assert result.bound_ns <= result.objective_ns
    return result


@pytest.mark.parametrize("name", SEARCHES)
def test_diamond_takes_10(name: str) -> None:
    assert solve(diamond(), name).objective_ns == 10


@pytest.mark.parametrize("name", SEARCHES)
def test_diamond_with_two_tasks_per_memory_takes_11(name: str) -> None:
    assert solve(diamond(2100, 1000), name).objective_ns == 11


def test_breadth_first_order_of_chains_goes_across() -> None:
    edges = [(f"a{i}", f"b{i}") for i in range(4)]
    run_ns: dict[str, tuple[int | None, ...]] = {name: (5, 5) for pair in edges for name in pair}
    native = problem_of(instance(edges, run_ns, gpus({}, 2))).native
    assert breadth_first_order(native) == (0, 2, 4, 6, 1, 3, 5, 7)


def test_rank_order_follows_mean_times() -> None:
    # Ranks a 13.5, b 9, c 8, d 3 (mean transfers of 1.5).
    native = problem_of(diamond()).native
    assert upward_ranks(native).tolist() == [13.5, 9.0, 8.0, 3.0]
    assert rank_order(native) == (0, 1, 2, 3)


@pytest.mark.parametrize("make", [empty_graph, one_task, zero_sizes, disconnected, many_outputs])
@pytest.mark.parametrize("run_ns", [0, 7])
@pytest.mark.parametrize("name", NAMES)
def test_edge_cases(make, run_ns: int, name: str) -> None:  # type: ignore[no-untyped-def]
    graph: TaskGraph = make()
    for cluster in (cpu(), gpus({(0, 1): 1, (1, 0): 1}, 2, host=0), gpus({}, 1)):
        costs = build_table(graph, cluster, lambda *_: Cost.given(run_ns))
        solve(Instance(graph, cluster, costs), name, iterations=50)


@pytest.mark.parametrize("name", NAMES)
def test_task_allowed_nowhere_is_named(name: str) -> None:
    case = instance([], {"a": (5, 5), "b": (None, None)}, gpus({(0, 1): 1, (1, 0): 1}, 2))
    with pytest.raises(InfeasibleError, match="task 'b' can run on no device"):
        solve(case, name)


@pytest.mark.costly
@given(instances(max_tasks=6, has_modes=True), st.integers(0, 3))
@exact_cases(40)
def test_plans_are_valid_and_not_below_the_bound(case: Instance, seed: int) -> None:
    for name in NAMES:
        solve(case, name, iterations=20, seed=seed)


def not_possible(case: Instance) -> bool:
    try:
        check_possible(problem_of(case))
    except InfeasibleError:
        return True
    return False


@pytest.mark.costly
def test_no_plan_is_below_brute_force_with_tight_memory_and_nearly_all_are_found() -> None:
    are_found: list[bool] = []

    @given(instances(max_tasks=4, is_memory_tight=True))
    @exact_cases(40)
    def check(case: Instance) -> None:
        optimum = optimal_makespan(case.graph, case.cluster, case.costs)
        for name in NAMES:
            if optimum is None:
                with pytest.raises(InfeasibleError):
                    solve(case, name, iterations=50)
                continue
            try:
                assert solve(case, name, iterations=50).objective_ns >= optimum
                are_found.append(True)
            except InfeasibleError:
                are_found.append(False)

    check()
    assert are_found
    assert sum(are_found) >= 0.88 * len(are_found)


@pytest.mark.costly
@given(instances(max_tasks=4, is_memory_tight=True))
@num_cases(40)
def test_walks_find_the_best_mapping_of_a_few_tasks(case: Instance) -> None:
    problem = problem_of(case)
    if not_possible(case):
        return
    native = problem.native
    order = breadth_first_order(native)
    values = [
        (found.violation, found.makespan_ns)
        for mapping in mappings_of(problem)
        for found in [evaluate_order(native, mapping, order)]
    ]
    for rule in ("annealing", "evolution"):
        report = search_mapping(
            native,
            initial_mapping(problem, order),
            order,
            rule=rule,
            max_evaluations=3000,
            time_limit_s=60,
            seed=1,
        )
        found = evaluate_order(native, report.placement, order)
        if rule == "evolution":
            assert (found.violation, found.makespan_ns) == min(values)
        else:
            assert (found.violation, found.makespan_ns) >= min(values)


def mappings_of(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Every allowed mapping."""
    run_ns, labels = problem.native.run_ns, problem.native.task_group
    allowed = [np.flatnonzero(row != IMPOSSIBLE).tolist() for row in run_ns]
    for mapping in itertools.product(*allowed):
        places: dict[int, int] = {}
        pairs = zip(mapping, labels, strict=True)
        if all(label < 0 or places.setdefault(label, d) == d for d, label in pairs):
            yield mapping


@given(
    instances(max_tasks=8, is_memory_tight=True, has_modes=True), st.integers(0, 9), st.booleans()
)
@exact_cases(40)
def test_a_walk_is_never_worse_than_its_start(case: Instance, seed: int, is_ea: bool) -> None:
    problem = problem_of(case)
    if not_possible(case):
        return
    native = problem.native
    order = breadth_first_order(native)
    assert sorted(order) == list(range(len(case.graph.tasks)))
    start = fastest_mapping(native, order)
    before = evaluate_order(native, start, order)
    report = search_mapping(
        native,
        start,
        order,
        rule="evolution" if is_ea else "annealing",
        max_evaluations=40,
        time_limit_s=60,
        seed=seed,
    )
    after = evaluate_order(native, report.placement, order)
    assert (after.violation, after.makespan_ns) <= (before.violation, before.makespan_ns)
    assert tuple(report.placement) in set(mappings_of(problem))


@given(instances(max_tasks=8))
@exact_cases(40)
def test_fastest_mapping_takes_least_run_time_where_memory_is_ample(case: Instance) -> None:
    problem = problem_of(case)
    native = problem.native
    if not_possible(case) or len(case.cluster.memories) > 1:
        return  # Over links that are missing a slower device may be the only one in reach.
    found = fastest_mapping(native, breadth_first_order(native))
    for task, device in enumerate(found):
        label = native.task_group[task]
        group = [t for t, g in enumerate(native.task_group) if g == label and label >= 0] or [task]
        sums = native.run_ns[group].sum(axis=0)
        allowed = np.flatnonzero(native.run_ns[task] != IMPOSSIBLE)
        assert device == allowed[sums[allowed].argmin()]
        assert nearest_allowed(problem)[task, device] == device


def test_fastest_mapping_stops_filling_a_memory_that_is_full() -> None:
    run_ns: dict[str, tuple[int | None, ...]] = {f"t{i}": (1, 9) for i in range(5)}
    case = instance([], run_ns, gpus({}, 2, capacity=330), weight_bytes=100)
    native = problem_of(case).native
    assert fastest_mapping(native, range(5)) == (0, 0, 0, 1, 1)


def test_a_group_needs_one_workspace_and_each_tensor_once() -> None:
    """Of two tasks of a group on the quicker device: 60 B of workspace, and 60 B that both read."""
    builder = TaskGraphBuilder("group")
    builder.add_task(Task("a", "op", devices=("gpu1",)), [])
    read = builder.add_tensor("a", num_bytes=60)
    for group, workspace, reads in (("working", 60, []), ("reading", 0, [read])):
        for index in range(2):
            task = Task(f"{group}{index}", "op", workspace_bytes=workspace, together=group)
            builder.add_task(task, reads)
            builder.add_tensor(task.name, num_bytes=0)
    graph = builder.finalize(
        [f"{group}{i}.0" for group in ("working", "reading") for i in range(2)]
    )
    for capacity, devices in ((120, (1, 0, 0, 0, 0)), (119, (1, 0, 0, 1, 1))):
        cluster = gpus({(1, 0): 1}, 2, capacity)
        costs = build_table(graph, cluster, lambda _, device: Cost.given(1 + 8 * device))
        assert fastest_mapping(Problem(graph, cluster, costs).native, range(5)) == devices


@given(instances(max_tasks=8))
@num_cases(40)
def test_a_device_is_replaced_only_where_the_task_cannot_be(case: Instance) -> None:
    problem = problem_of(case)
    if not_possible(case):
        return
    nearest = nearest_allowed(problem)
    for task, row in enumerate(problem.native.run_ns):
        for device, time_ns in enumerate(row):
            assert row[nearest[task, device]] != IMPOSSIBLE
            assert time_ns == IMPOSSIBLE or nearest[task, device] == device


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_use_their_whole_budget_and_no_more(name: str) -> None:
    result = solve(layered(), name, iterations=333)
    assert result.candidates[0][2].startswith("333 ")


@pytest.mark.parametrize("name", SEARCHES)
def test_more_samples_gain(name: str) -> None:
    few = solve(layered(), name, iterations=4).objective_ns
    assert solve(layered(), name, iterations=4000).objective_ns < few


def test_annealing_in_a_fixed_order_is_behind_the_search_that_moves_the_order() -> None:
    search = solve(layered(), "search", iterations=20_000).objective_ns
    assert search <= solve(layered(), "sa", iterations=20_000).objective_ns


@pytest.mark.parametrize("name", SEARCHES)
def test_another_seed_searches_elsewhere(name: str) -> None:
    plans = {solve(layered(), name, iterations=70, seed=seed).plan.steps for seed in range(4)}
    assert len(plans) > 1


@pytest.mark.parametrize("name", SEARCHES)
def test_interrupt_ends_the_search_with_its_best_plan(name: str) -> None:
    case = memory_forced_cut(21_000)  # Its bound is below its optimum: no search ends by itself.
    calls: list[str] = []

    def progress(report: ProgressReport) -> None:
        calls.append(report.phase)

    options = SolveOptions(time_limit_s=60, progress=progress)
    problem = problem_of(case)
    assert lower_bound(problem).ns < 110
    solve(case, name)  # So that nothing is imported while Ctrl-C is on its way.
    with ctrl_c_after(0.3):
        result = get_solver(name).solve(problem, options)
    assert result.status == "interrupted"
    assert set(calls) == {name}
    check_plan(case.graph, case.cluster, case.costs, result.plan)


def test_mapping_of_the_wrong_length_is_an_error() -> None:
    native = problem_of(diamond()).native
    with pytest.raises(GraphError, match="a placement has 3 entries, expected 4"):
        search_mapping(
            native,
            (0, 0, 0),
            range(4),
            rule="annealing",
            max_evaluations=1,
            time_limit_s=1,
            seed=0,
        )
