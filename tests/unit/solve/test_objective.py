"""What is compared and printed speaks about the objective that was asked for."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.model.check import check_plan
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.plan import Run
from heteroplace.report.tables import solution_headline
from heteroplace.simulate.interference import Interference, no_interference
from heteroplace.simulate.simulator import simulate
from heteroplace.simulate.throughput import throughput_ns
from heteroplace.solve import Problem, SolveOptions, get_solver, solve_network
from heteroplace.solve.objective import (
    num_devices,
    single_objectives,
    single_plan_of_items,
    with_least_gain,
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
        "predicted one item every 1.00 us on cpu.0+cpu.1 (a run of one item 2.00 us; best single "
        "device cpu.all 1.80 us per item; lower bound 1.00 us per item, gap 0 %)"
    )


def test_the_least_gain_is_asked_of_times_per_item() -> None:
    careful = replace(THROUGHPUT, min_gain_ratio=0.6)  # two cores gain half
    given = chain()
    graph, cluster = given.graph, given.cluster
    costs = build_table(graph, cluster, lambda *_: Cost.measured(1000))
    assert solve_network(given, careful).item_ns == 1000
    found = solve_network(Problem(graph, cluster, costs), careful)
    assert (found.devices_used, found.item_ns) == (("cpu.0",), 2000)
    assert "one device is best: everything on cpu.0, predicted one item every 2.00 us" in (
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
