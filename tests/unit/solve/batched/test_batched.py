"""Batched list schedulers: bmet, bgreedy, bheft."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import InfeasibleError, SolverError, SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.plan import Copy, Run
from heteroplace.native.simulate import simulate_steps
from heteroplace.parts.throughput.batched.list_solver import batch_bound
from heteroplace.parts.throughput.native.core_batches import (
    batch_compositions,
    schedule_batches,
    unserved_tasks,
)
from heteroplace.simulate.simulator import simulate
from heteroplace.solve import Problem, SolveOptions, SolveResult, get_solver
from tests.instances import cpu, gpus, instance
from tests.reference.batch_brute_force import optimal_batch_makespan
from tests.strategies import Instance, exact_cases, instances, num_cases
from tests.unit.solve.test_worked import disconnected, empty_graph, many_outputs, zero_sizes
from zoo.graphs.batches import with_batches
from zoo.graphs.catalogue import layered
from zoo.graphs.clusters import hub
from zoo.graphs.layered import Layered

NAMES = ("bmet", "bgreedy", "bheft")


def solve(case: Instance, name: str, items: int) -> SolveResult:
    problem = Problem(case.graph, case.cluster, case.costs)
    result = get_solver(name).solve(problem, SolveOptions(items=items))
    check_plan(case.graph, case.cluster, case.costs, result.plan)
    assert result.plan.items == items
    assert result.bound_ns <= result.objective_ns
    timeline = simulate(case.graph, case.cluster, case.costs, result.plan)
    assert timeline.makespan_ns == result.objective_ns
    return result


def batched(
    edges: list[tuple[str, str]],
    run_ns: dict[str, tuple[dict[int, int], ...]],
    widths: dict[tuple[int, int], int],
    batch_sizes: tuple[int, ...],
    num_bytes: int = 10,
) -> Instance:
    """Tasks with the time of each batch size on each device."""
    sizes = sorted({1, *(size for row in run_ns.values() for times in row for size in times)})
    ones = {name: (1,) * len(row) for name, row in run_ns.items()}
    plain = instance(edges, ones, gpus(widths, len(next(iter(run_ns.values())))), num_bytes)
    devices = tuple(replace(d, batch_sizes=batch_sizes) for d in plain.cluster.devices)
    cluster = replace(plain.cluster, devices=devices)

    def cost(task: int, device: int, batch: int = 1) -> Cost:
        time_ns = run_ns[plain.graph.tasks[task].name][device].get(batch)
        return Cost.unsupported("not measured") if time_ns is None else Cost.given(time_ns)

    return Instance(plain.graph, cluster, build_table(plain.graph, cluster, cost, tuple(sizes)))


def chain() -> Instance:
    """i -> j; a transfer takes 100, so each item should stay on its device."""
    run_ns = {"i": ({1: 1}, {1: 4}), "j": ({1: 4}, {1: 1})}
    return batched([("i", "j")], run_ns, {(0, 1): 1, (1, 0): 1}, (1,), num_bytes=100)


def one_op(batch_sizes: tuple[int, ...]) -> Instance:
    """An op on two unlike devices."""
    return batched([], {"op": ({1: 2, 2: 3, 4: 6}, {1: 3, 2: 5, 4: 9})}, {}, batch_sizes)


@pytest.mark.parametrize("name", NAMES)
def test_halves_of_a_chain_drift_apart(name: str) -> None:
    case = chain()
    assert optimal_batch_makespan(case.graph, case.cluster, case.costs, 2) == 5
    result = solve(case, name, 2)
    assert result.objective_ns == 5
    assert result.plan.copies == ()


@pytest.mark.parametrize(
    ("batch_sizes", "items", "expected"),
    [((1, 2, 4), 4, 5), ((2,), 4, 5), ((4,), 4, 6), ((1,), 2, 3)],
)
@pytest.mark.parametrize("name", ["bgreedy", "bheft"])
def test_one_op_is_split_best(
    name: str, batch_sizes: tuple[int, ...], items: int, expected: int
) -> None:
    case = one_op(batch_sizes)
    assert optimal_batch_makespan(case.graph, case.cluster, case.costs, items) == expected
    assert solve(case, name, items).objective_ns == expected


def test_bmet_takes_the_pair_of_least_time_per_item() -> None:
    # 3 / 2 = 6 / 4 per item on device 0; the tie goes to the single batch.
    assert solve(one_op((1, 2, 4)), "bmet", 4).plan.steps == (Run(0, 0, (0, 1, 2, 3)),)
    assert solve(one_op((1, 2)), "bmet", 4).plan.steps == (Run(0, 0, (0, 1)), Run(0, 1, (2, 3)))


def test_copies_of_one_batch_to_one_reader_are_one_transfer() -> None:
    run_ns = {"a": ({4: 5}, {}), "b": ({}, {4: 5})}
    case = batched([("a", "b")], run_ns, {(0, 1): 10, (1, 0): 10}, (4,))
    result = solve(case, "bheft", 4)
    assert result.plan.copies == (Copy(0, 0, 1, (0,), (0, 1, 2, 3)),)
    assert result.objective_ns == 5 + 4 + 5


def test_items_stay_where_their_tensors_are() -> None:
    # 1 + 3 on the devices of i; j splits alike, although its first part could take other items.
    run_ns = {"i": ({1: 5}, {3: 5}), "j": ({1: 5}, {3: 5})}
    case = batched([("i", "j")], run_ns, {(0, 1): 1, (1, 0): 1}, (1, 3))
    result = solve(case, "bheft", 4)
    assert result.plan.copies == ()
    assert result.objective_ns == 10


def test_compositions_have_one_to_three_parts_and_all_sizes() -> None:
    row: tuple[dict[int, int], ...] = ({1: 1, 2: 1, 4: 1}, {2: 1}, {1: 1, 2: 1}, {1: 1, 3: 1})
    case = batched([], {"op": row}, {}, (1, 2, 3, 4))
    found = batch_compositions(Problem(case.graph, case.cluster, case.costs).native, 0, 4)
    assert set(found) == {
        ((0, 4),),
        ((0, 2), (1, 2)),
        ((0, 2), (2, 2)),
        ((1, 2), (2, 2)),
        ((0, 1), (3, 3)),
        ((2, 1), (3, 3)),
        ((0, 1), (1, 2), (2, 1)),
        ((0, 1), (1, 2), (3, 1)),
        ((0, 1), (2, 2), (3, 1)),
        ((0, 2), (2, 1), (3, 1)),
        ((1, 2), (2, 1), (3, 1)),
    }
    assert len(found) == len(set(found))


def test_more_than_three_parts_are_used_where_fewer_do_not_add_up() -> None:
    case = batched([], {"op": ({1: 5}, {1: 6}, {1: 7}, {1: 8})}, {}, (1,))
    assert solve(case, "bheft", 4).objective_ns == 8


@pytest.mark.costly
@given(instances(max_tasks=4, max_batch=4), st.integers(1, 9))
@num_cases(100)
def test_tasks_without_compositions_are_known_without_making_any(
    case: Instance, items: int
) -> None:
    native = Problem(case.graph, case.cluster, case.costs).native
    tasks = range(len(case.graph.tasks))
    unserved = tuple(task for task in tasks if not batch_compositions(native, task, items))
    assert unserved_tasks(native, items) == unserved


@pytest.mark.parametrize("items", [63, 64, 65, 127, 128, 129, 200])
def test_many_items_add_up_in_any_of_their_words(items: int) -> None:
    sizes = (1, 60, 64, 70)
    row: tuple[dict[int, int], ...] = ({60: 1}, {64: 1, 70: 1}, {1: 1, 64: 1}, {1: 1})
    case = batched([], {"op": row}, {}, sizes)
    native = Problem(case.graph, case.cluster, case.costs).native
    assert (unserved_tasks(native, items) == ()) == bool(batch_compositions(native, 0, items))


@pytest.mark.parametrize("name", NAMES)
def test_who_runs_out_of_time_says_so(name: str) -> None:
    """Three of forty devices: 10,000 ways for each task."""
    problem = with_batches(layered(Layered(100), 0.1, hub(40)), 3)
    with pytest.raises(SolverLimitError, match=rf"{name} had not placed 3 items of all 100 tasks"):
        get_solver(name).solve(problem, SolveOptions(items=3, time_limit_s=1e-6))


def test_sizes_that_do_not_add_up_are_named() -> None:
    case = batched([], {"op": ({2: 5}, {2: 6})}, {}, (2,))
    with pytest.raises(InfeasibleError, match=r"up to 3 items for task 'op' \(gpu0: 2; gpu1: 2\)"):
        solve(case, "bheft", 3)


def test_plan_that_overflows_is_infeasible() -> None:
    case = instance([], {"a": (5, 5)}, gpus({}, 2, capacity=25))
    assert solve(case, "bheft", 2).objective_ns == 5
    devices = tuple(replace(device, batch_sizes=(3,)) for device in case.cluster.devices)
    cluster = replace(case.cluster, devices=devices)
    costs = build_table(case.graph, cluster, lambda *_: Cost.given(5), (1, 3))
    with pytest.raises(InfeasibleError, match=r"no plan for 3 items .* m0 has 25 B, m1 has 25 B"):
        solve(Instance(case.graph, cluster, costs), "bheft", 3)


@pytest.mark.parametrize("name", NAMES)
def test_a_split_that_fits_goes_before_one_that_is_faster(name: str) -> None:
    # Two items of 10 bytes fit in each memory; four would be fastest on the first device.
    case = batched([], {"op": ({1: 1, 2: 1, 4: 1}, {1: 9, 2: 9, 4: 9})}, {}, (1, 2, 4))
    memories = tuple(replace(memory, bytes=25) for memory in case.cluster.memories)
    cluster = replace(case.cluster, memories=memories)
    costs = replace(case.costs, devices=cluster.identities)
    assert solve(Instance(case.graph, cluster, costs), name, 4).objective_ns == 9


@pytest.mark.parametrize("make", [empty_graph, zero_sizes, disconnected, many_outputs])
@pytest.mark.parametrize("run_ns", [0, 7])
@pytest.mark.parametrize("name", NAMES)
def test_edge_cases(make, run_ns: int, name: str) -> None:  # type: ignore[no-untyped-def]
    graph = make()
    for plain in (cpu(), gpus({(0, 1): 1, (1, 0): 1}, 2, host=0), gpus({}, 1)):
        devices = tuple(replace(device, batch_sizes=(1, 2, 3)) for device in plain.devices)
        cluster = replace(plain, devices=devices)
        costs = build_table(graph, cluster, lambda *_: Cost.given(run_ns), (1, 2, 3))
        for items in (1, 3):
            solve(Instance(graph, cluster, costs), name, items)


def test_items_out_of_range_are_named() -> None:
    with pytest.raises(SolverError, match=r"items must be in 1\.\.1000000, got 0"):
        SolveOptions(items=0)


@pytest.mark.costly
@given(instances(max_tasks=6, max_batch=4, has_modes=True), st.integers(1, 5))
@exact_cases(60)
def test_plans_serve_all_items_and_are_not_below_the_bound(case: Instance, items: int) -> None:
    for name in NAMES:
        try:
            solve(case, name, items)
        except InfeasibleError as error:
            # Memory is ample, and every link is there.
            assert "add up" in str(error)


@pytest.mark.costly
def test_simulated_makespan_is_never_later_than_scheduled() -> None:
    fit: list[bool] = []

    @given(instances(max_tasks=4, max_batch=3, has_modes=True, is_memory_tight=True))
    @exact_cases(200)
    def check(case: Instance) -> None:
        problem = Problem(case.graph, case.cluster, case.costs)
        for rule in ("fastest", "latency", "finish"):
            try:
                found = schedule_batches(problem.native, 3, rule)
            except InfeasibleError:
                continue
            fit.append(found.violation == 0)
            if fit[-1]:
                solve(case, {"fastest": "bmet", "latency": "bgreedy", "finish": "bheft"}[rule], 3)
                simulated = simulate_steps(problem.native, found.steps, 3)
                assert simulated.makespan_ns <= found.makespan_ns

    check()
    assert sum(fit) > 0.08 * len(fit)


@pytest.mark.costly
@given(instances(max_tasks=3, max_batch=3), st.integers(1, 2))
@exact_cases(60)
def test_no_plan_is_below_brute_force(case: Instance, items: int) -> None:
    cluster = replace(case.cluster, congestion="none")
    costs = replace(case.costs, devices=cluster.identities)
    free = Instance(case.graph, cluster, costs)
    optimum = optimal_batch_makespan(case.graph, cluster, costs, items)
    if optimum is not None:
        assert batch_bound(Problem(case.graph, cluster, costs), items) <= optimum
    for one in (case, free):
        for name in NAMES:
            try:
                objective = solve(one, name, items).objective_ns
            except InfeasibleError:
                assert optimum is None
                continue
            assert optimum is not None
            assert objective >= optimum


@pytest.mark.costly
@given(instances(max_tasks=6, has_modes=True))
@exact_cases(60)
def test_batches_of_one_item_are_plain_runs(case: Instance) -> None:
    result = solve(case, "bheft", 1)
    assert all(step.items == (0,) for step in result.plan.steps)
    assert len([step for step in result.plan.steps if isinstance(step, Run)]) == len(
        case.graph.tasks
    )
