"""What is compared and printed speaks about the objective that was asked for."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.model.check import check_plan
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.parts.throughput.item_objectives import with_least_gain
from heteroplace.report.headline import solution_headline
from heteroplace.simulate.interference import Interference, no_interference
from heteroplace.simulate.simulator import simulate
from heteroplace.simulate.throughput import throughput_ns
from heteroplace.solve import Problem, SolveOptions, get_solver, solve_network
from heteroplace.solve.judge import replay
from heteroplace.solve.list.single import single_plan
from heteroplace.solve.objective import (
    num_devices,
    single_objectives,
    single_plan_of_items,
)
from tests.instances import cpu, gpus, instance, problem_of

THROUGHPUT = SolveOptions("throughput", time_limit_s=1.0, iterations=200, threads=1)


def chain() -> Problem:
    """a -> b, of 1000 ns on either core: two cores gain nothing in one run, all in many."""
    return problem_of(instance([("a", "b")], {"a": (1000,) * 3, "b": (1000,) * 3}, cpu()))


def disturbed(problem: Problem) -> Interference:
    quiet = no_interference(problem.graph, problem.cluster)
    return replace(quiet, slowdown=np.full(quiet.slowdown.shape, 5.0))


@pytest.mark.parametrize("solver", ["auto", "throughput", "pipeline"])
def test_a_plan_for_throughput_is_not_swapped_for_a_shorter_single_run(solver: str) -> None:
    problem = chain()
    found = solve_network(problem, THROUGHPUT, lambda: disturbed(problem), solver=solver)
    assert len(found.devices_used) == 2
    assert (found.item_ns, found.objective_ns, found.bound_ns) == (1000, 1000, 1000)
    assert found.gap_ratio == 0.0
    assert found.predicted_ns == 2000
    assert found.expected is None
    assert dict(found.singles)["cpu.0"] == 2000


def test_the_headline_sets_times_per_item_beside_times_per_item() -> None:
    problem = problem_of(
        instance([("a", "b")], {"a": (1000, 1000, 900), "b": (1000, 1000, 900)}, cpu())
    )
    assert solution_headline(solve_network(problem, THROUGHPUT)) == (
        "predicted 1.80x as fast as the best single device: one item every 1.00 us on "
        "cpu.0+cpu.1, one item every 1.80 us on cpu.all (a run of one item takes 2.00 us; "
        "no plan is faster)"
    )


def test_the_least_gain_is_asked_of_times_per_item() -> None:
    careful = replace(THROUGHPUT, min_gain_ratio=0.6)  # two cores gain half
    given = chain()
    graph, cluster = given.graph, given.cluster
    costs = build_table(graph, cluster, lambda *_: Cost.measured(1000))
    assert solve_network(given, careful).item_ns == 1000
    found = solve_network(Problem(graph, cluster, costs), careful)
    assert (found.devices_used, found.item_ns) == (("cpu.0",), 2000)
    assert "one device is best: everything runs on cpu.0, predicted one item every 2.00 us" in (
        solution_headline(found)
    )


def test_reasons_of_a_plan_for_throughput_speak_of_the_time_per_item() -> None:
    reasons = solve_network(chain(), THROUGHPUT).plan.reasons
    assert all("would lengthen the time per item by 100.0%" in reason for reason in reasons)


def test_several_items_are_compared_with_as_many_on_one_device() -> None:
    """A batch of 2 takes 1200 ns, one of 1 takes 1000: three items take 2200 on one device."""
    devices = tuple(replace(device, batch_sizes=(1, 2)) for device in cpu().devices)
    cluster = replace(cpu(), devices=devices)
    one = instance([("a", "b")], {"a": (1000,) * 3, "b": (1000,) * 3}, cluster)
    times = {1: 1000, 2: 1200}
    costs = build_table(
        one.graph, one.cluster, lambda task, device, batch: Cost.given(times[batch]), (1, 2)
    )
    problem = Problem(one.graph, one.cluster, costs)
    assert single_objectives(problem, items=3) == dict.fromkeys(
        ("cpu.0", "cpu.1", "cpu.all"), 2 * 2200
    )
    plan = single_plan_of_items(problem, 0, 3)
    assert plan is not None
    check_plan(problem.graph, problem.cluster, costs, plan)
    assert throughput_ns(problem.graph, problem.cluster, costs, plan) > 0


def test_a_batch_that_another_task_of_the_group_cannot_have_is_left_out() -> None:
    cluster = replace(cpu(), devices=tuple(replace(d, batch_sizes=(1, 2)) for d in cpu().devices))
    one = instance([("a", "b")], {"a": (10,) * 3, "b": (10,) * 3}, cluster)
    tasks = tuple(replace(task, together="g") for task in one.graph.tasks)
    graph = replace(one.graph, tasks=tasks)

    def cost(task: int, device: int, batch: int = 1) -> Cost:
        return Cost.unsupported("no kernel") if (task, batch) == (0, 2) else Cost.given(10)

    problem = Problem(graph, cluster, build_table(graph, cluster, cost, (1, 2)))
    plan = single_plan_of_items(problem, 0, 2)
    assert plan is not None
    assert {len(step.items) for step in plan.steps if isinstance(step, Run)} == {1}
    for solver in ("auto", "split", "divi", "bheft"):
        options = SolveOptions(items=2, iterations=100, threads=1, time_limit_s=60)
        found = get_solver(solver).solve(problem, options)
        check_plan(graph, cluster, problem.costs, found.plan)


def test_many_items_take_memory_in_proportion_to_their_number() -> None:
    """Of 20,000 items a table of their batches for each smaller number would take 400 MB."""
    items, times = 20_000, {1: 10, 2: 16, 4: 30}
    cluster = replace(
        cpu(), devices=tuple(replace(d, batch_sizes=(1, 2, 4)) for d in cpu().devices)
    )
    one = instance([("a", "b")], {"a": (10,) * 3, "b": (10,) * 3}, cluster)
    costs = build_table(
        one.graph, cluster, lambda task, device, batch: Cost.given(times[batch]), tuple(times)
    )
    problem = Problem(one.graph, cluster, costs)
    tracemalloc.start()
    try:
        plan = single_plan_of_items(problem, 0, items)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert plan is not None
    batches = [step.items for step in plan.steps if isinstance(step, Run) and step.task == 0]
    assert [item for batch in batches for item in batch] == list(range(items))
    assert {len(batch) for batch in batches} == {4}
    assert peak < 60 * 2**20


@given(
    st.dictionaries(st.integers(1, 6), st.integers(0, 9), min_size=1).map(lambda d: d | {1: 9}),
    st.integers(2, 12),
)
def test_items_are_split_into_batches_of_least_time(times: dict[int, int], items: int) -> None:
    sizes = tuple(sorted(times))
    cluster = replace(cpu(), devices=tuple(replace(d, batch_sizes=sizes) for d in cpu().devices))
    one = instance([], {"a": (times[1],) * 3}, cluster)
    costs = build_table(
        one.graph, cluster, lambda task, device, batch=1: Cost.given(times[batch]), sizes
    )
    plan = single_plan_of_items(Problem(one.graph, cluster, costs), 0, items)
    assert plan is not None
    found = [len(step.items) for step in plan.steps if isinstance(step, Run)]
    ways = (
        way
        for count in range(1, items + 1)
        for way in combinations_with_replacement(sizes, count)
        if sum(way) == items
    )
    least = min((sum(times[size] for size in way), len(way)) for way in ways)
    assert (sum(times[size] for size in found), len(found)) == least


def test_an_interrupted_solve_stays_one_where_one_device_is_almost_as_good() -> None:
    problem = chain()
    options = SolveOptions(min_gain_ratio=0.5, items=2)
    costs = build_table(problem.graph, problem.cluster, lambda *_: Cost.measured(1000))
    problem = Problem(problem.graph, problem.cluster, costs)
    result = get_solver("bheft").solve(problem, options)
    assert num_devices(problem, result.plan) == 2
    for bound, status in ((0, "interrupted"), (4000, "optimal")):
        ended = replace(result, status="interrupted", bound_ns=bound)
        chosen = with_least_gain(problem, ended, options, {"cpu.0": 4000})
        assert (chosen.objective_ns, chosen.status) == (4000, status)


def test_a_plan_of_several_items_says_how_many_in_its_headline() -> None:
    problem = chain()
    options = SolveOptions(items=2, time_limit_s=1.0, iterations=200, threads=1)
    found = solve_network(problem, options, lambda: disturbed(problem), solver="bheft")
    makespan = simulate(problem.graph, problem.cluster, problem.costs, found.plan).makespan_ns
    assert found.predicted_ns == makespan
    assert dict(found.singles) == dict.fromkeys(("cpu.0", "cpu.1", "cpu.all"), 4000)
    assert "for 2 items" in solution_headline(found)


def test_a_device_that_cannot_hold_all_items_is_no_single_device() -> None:
    def problem_with(num_bytes: int) -> Problem:
        links = gpus({(0, 1): 1, (1, 0): 1}, 2, num_bytes)
        return problem_of(instance([("a", "b")], {"a": (5, 5), "b": (5, 5)}, links))

    # One after the other, two items need three tensors at once.
    assert single_objectives(problem_with(30), items=2) == {"gpu0": 20, "gpu1": 20}
    problem = problem_with(29)
    assert single_objectives(problem) == {"gpu0": 10, "gpu1": 10}
    assert single_objectives(problem, "throughput") == {"gpu0": 10, "gpu1": 10}
    assert single_objectives(problem, items=2) == {}


def by_lifetime(times: tuple[tuple[int, int], ...]) -> Problem:
    """A chain whose tensors fit on the GPU only as those before them are freed."""
    names = [f"t{index}" for index in range(len(times))]
    links = {(0, 1): 10, (1, 0): 10}
    cluster = gpus(links, 2)
    memories = (cluster.memories[0], replace(cluster.memories[1], bytes=250))
    cluster = replace(cluster, memories=memories, host=0)
    case = instance(
        list(pairwise(names)), dict(zip(names, times, strict=True)), cluster, num_bytes=100
    )
    return problem_of(case)


@pytest.mark.parametrize("solver", ["auto", "throughput"])
def test_one_device_counts_for_throughput_only_if_it_holds_an_item_whole(solver: str) -> None:
    """The bound is of such plans: one by lifetime was below it, and was taken."""
    problem = by_lifetime(((1000, 10),) * 4)
    assert problem.native.counts_lifetimes
    assert list(single_objectives(problem, "throughput")) == ["gpu0"]
    result = get_solver(solver).solve(problem, THROUGHPUT)
    assert result.bound_ns <= result.objective_ns


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_the_bound_of_a_given_plan_is_of_plans_like_it(objective: str) -> None:
    """It keeps everything on the GPU, which only fits by lifetime."""
    problem = by_lifetime(((1000, 10),) * 4)
    plan = single_plan(problem, 1)
    assert isinstance(plan, Plan)
    result = replay(problem, plan, SolveOptions(objective, time_limit_s=2.0))
    assert 0 < result.bound_ns <= result.objective_ns


def test_the_bound_of_a_plan_that_relays_a_copy_is_below_it() -> None:
    """The direct link is slow, and the way over a third memory fast; each task has one device."""
    speeds = {(0, 1): 1, (0, 2): 1000, (2, 1): 1000}
    case = instance([("a", "b")], {"a": (10, None, None), "b": (None, 10, None)},
                    gpus(speeds, 3), num_bytes=100_000)  # fmt: skip
    problem = problem_of(case)
    graph, cluster = case.graph, case.cluster
    links = {(link.src, link.dst): index for index, link in enumerate(cluster.links)}
    tensor = graph.task_outputs[0][0]
    around = (links[0, 2], links[2, 1])
    ways = [
        (Copy(tensor, 0, 1, around),),
        (Copy(tensor, 0, 2, around[:1]), Copy(tensor, 2, 1, around[1:])),
        (Copy(tensor, 0, 1, (links[0, 1],)),),
    ]
    results = []
    for copies in ways:
        steps = (Run(0, 0), *copies, Run(1, 1))
        plan = Plan(graph.digest(), cluster.digest(), steps, "by hand")
        results.append(replay(problem, plan, SolveOptions(time_limit_s=2.0)))
    assert all(result.bound_ns <= result.objective_ns for result in results)
    assert results[0].bound_ns == 20 < results[2].bound_ns
