"""Stages of a pipeline: contiguity, exhaustive search, agreement with the simulator."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import InfeasibleError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.native.core_loads import placement_loads
from heteroplace.parts.throughput.steady_state.pipeline import stage_order
from heteroplace.parts.throughput.steady_state.priced_assignment import is_small, solve_assignment
from heteroplace.parts.throughput.steady_state.stage_splits import stage_splits
from heteroplace.simulate.simulator import simulate
from heteroplace.simulate.throughput import repeat_plan
from heteroplace.solve import Problem, SolveOptions, SolveResult, get_solver
from heteroplace.solve.deadline import Deadline
from tests.instances import gpus, instance, problem_of
from tests.reference.graphs import closure
from tests.reference.placements import fits, is_allowed
from tests.reference.software_pipeline import pipeline_plan
from tests.reference.throughput import busy_times
from tests.strategies import Instance, exact_cases, instances

OPTIONS = SolveOptions(objective="throughput", iterations=4000, time_limit_s=60)


def solve(case: Instance, name: str = "pipeline") -> SolveResult:
    result = get_solver(name).solve(problem_of(case), OPTIONS)
    check_plan(case.graph, case.cluster, case.costs, result.plan)
    return result


def there_and_back(num_bytes: int = 10) -> Instance:
    """a -> b -> c; a and c are fast on the first device, b on the second."""
    run_ns: dict[str, tuple[int | None, ...]] = {"a": (3, 20), "b": (20, 6), "c": (3, 20)}
    widths = {(0, 1): 10, (1, 0): 10}
    return instance([("a", "b"), ("b", "c")], run_ns, gpus(widths, 2), num_bytes)


def least_staged_ns(case: Instance) -> int | None:
    """Over all placements whose devices have an order in which no edge leads back."""
    graph, cluster, costs = case.graph, case.cluster, case.costs
    count = len(cluster.devices)
    best: int | None = None
    for placement in itertools.product(range(count), repeat=len(graph.tasks)):
        edges = {
            (placement[producer], placement[task])
            for task, producers in enumerate(graph.predecessors)
            for producer in producers
            if placement[producer] != placement[task]
        }
        reaches = closure(count, edges)
        if any(reaches[device][device] for device in range(count)):
            continue
        if not is_allowed(graph, cluster, costs, placement) or not fits(graph, cluster, placement):
            continue
        busy = busy_times(graph, cluster, costs, placement)
        if busy is not None:
            item_ns = max(busy.values(), default=0)
            best = item_ns if best is None else min(best, item_ns)
    return best


def test_a_device_does_not_run_the_first_and_the_last_stage() -> None:
    case = there_and_back()
    assert solve(case, "throughput").objective_ns == 6
    result = solve(case)
    # All on either device takes 26 or 46; b and c on the first 23, behind a on the second, 20.
    assert result.objective_ns == 23
    assert result.candidates[0] == ("stages", 23, "no stages take less than 23 ns per item")
    assert result.bound_ns <= 6
    assert stage_order(problem_of(case), result.plan.placement(3)) in ((0, 1), (1, 0))


def test_order_of_stages() -> None:
    problem = problem_of(there_and_back())
    assert stage_order(problem, (1, 0, 0)) == (1, 0)
    assert stage_order(problem, (0, 0, 0)) == (0,)
    assert stage_order(problem, (0, 1, 0)) is None


def test_convex_parts_that_wait_for_each_other_are_no_stages() -> None:
    """a1 -> b1 and b2 -> a2: both parts are convex, but neither device comes first."""
    run_ns: dict[str, tuple[int | None, ...]] = {name: (5, 5) for name in ("a1", "b1", "b2", "a2")}
    case = instance([("a1", "b1"), ("b2", "a2")], run_ns, gpus({(0, 1): 1, (1, 0): 1}, 2))
    problem = problem_of(case)
    device = {"a1": 0, "a2": 0, "b1": 1, "b2": 1}
    assert stage_order(problem, [device[task.name] for task in case.graph.tasks]) is None


@pytest.mark.costly
@given(instances(max_tasks=5, is_memory_tight=True, has_modes=True))
@exact_cases(50)
def test_stages_equal_exhaustive_search(case: Instance) -> None:
    optimum = least_staged_ns(case)
    try:
        result = solve(case)
    except InfeasibleError:
        assert optimum is None
        return
    assert result.bound_ns <= result.objective_ns == optimum
    assert get_solver("throughput").solve(problem_of(case), OPTIONS).bound_ns <= optimum
    assert stage_order(problem_of(case), result.plan.placement(len(case.graph.tasks))) is not None


@pytest.mark.parametrize("is_memory_tight", [False, True])
@exact_cases(40)
@given(data=st.data())
def test_the_programme_is_exact_without_the_search(
    is_memory_tight: bool, data: st.DataObject
) -> None:
    case = data.draw(instances(max_tasks=6, is_memory_tight=is_memory_tight))
    problem = problem_of(case)
    found = solve_assignment(problem, 10, 60, is_contiguous=True)
    optimum = least_staged_ns(case)
    assert (found.placement is None) == found.is_impossible == (optimum is None)
    if found.placement is not None:
        assert stage_order(problem, found.placement) is not None
        load = placement_loads(problem.native, found.placement)
        assert load.num_unreachable == 0 and load.fits(case.cluster)
        assert found.bound_ns == load.item_ns == optimum


def apart(cluster: Cluster) -> Cluster:
    """The cluster with a unit for each device, and a link with its own channel for each pair."""
    devices = tuple(
        replace(one, cores=(core,)) if one.cores else one
        for core, one in enumerate(cluster.devices)
    )
    links = {(one.src, one.dst): replace(one, channel=one.name) for one in cluster.links}
    for src, dst in itertools.permutations(range(len(cluster.memories)), 2):
        links.setdefault((src, dst), Link(f"{src}-{dst}", src, dst, 10**9, 1, f"{src}-{dst}"))
    return replace(cluster, devices=devices, links=tuple(links.values()))


@given(instances(max_tasks=6))
@exact_cases(40)
def test_repetitions_of_stages_keep_the_pace_of_the_busiest_resource(case: Instance) -> None:
    """In the plan's own order, where devices share nothing and every link is a channel."""
    cluster = apart(case.cluster)
    free = Instance(case.graph, cluster, replace(case.costs, devices=cluster.identities))
    result = solve(free)
    plan = result.plan
    once = simulate(free.graph, cluster, free.costs, plan)
    busy = sum(span.finish_ns - span.start_ns for span in once.spans)
    for items in (10, 40):
        timeline = simulate(free.graph, cluster, free.costs, repeat_plan(plan, items))
        assert items * result.objective_ns <= timeline.makespan_ns
        assert timeline.makespan_ns <= items * result.objective_ns + busy
    pipeline = pipeline_plan(free.graph, cluster, plan, once, 10)
    assert pipeline.period_ns == max(1, result.objective_ns)
    makespan = simulate(free.graph, cluster, free.costs, pipeline.plan).makespan_ns
    assert 10 * result.objective_ns <= makespan <= pipeline.latency_ns + 9 * pipeline.period_ns


def test_plans_that_are_no_stages_fall_behind() -> None:
    """What the stages are for: the plan of 6 ns per item takes 14 for each in its own order."""
    case = there_and_back()
    result = solve(case, "throughput")
    plan = repeat_plan(result.plan, 40)
    makespan = simulate(case.graph, case.cluster, case.costs, plan).makespan_ns
    assert makespan == 40 * (3 + 1 + 6 + 1 + 3)


def chain(num_tasks: int) -> Instance:
    run_ns: dict[str, tuple[int | None, ...]] = {
        f"t{i}": tuple(speed * (10 + i % 7) for speed in (10, 12, 11)) for i in range(num_tasks)
    }
    edges = [(f"t{i}", f"t{i + 1}") for i in range(num_tasks - 1)]
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    return instance(edges, run_ns, gpus(dict.fromkeys(pairs, 1), 3), num_bytes=3)


def test_long_chain_is_split_near_its_bound() -> None:
    case = chain(900)
    result = solve(case)
    assert stage_order(problem_of(case), result.plan.placement(900)) is not None
    assert 0 < result.bound_ns <= result.objective_ns
    assert result.gap < 0.02


@given(instances(max_tasks=7))
@exact_cases(50)
def test_splits_are_stages_that_keep_labels_together(case: Instance) -> None:
    problem = problem_of(case)
    for placement in stage_splits(problem):
        assert stage_order(problem, placement) is not None
        assert is_allowed(case.graph, case.cluster, case.costs, placement.tolist())


def test_a_chain_is_cut_best() -> None:
    """Times 5, 1, 1, 5, 4 on two equal devices: 7 and 9; a device of half the speed takes one."""
    times = (5, 1, 1, 5, 4)
    names = [f"t{i}" for i in range(5)]
    links = gpus({(0, 1): 100, (1, 0): 100}, 2)
    equal = instance(
        list(pairwise(names)), {n: (t, t) for n, t in zip(names, times, strict=True)}, links
    )
    (placement, *_) = stage_splits(problem_of(equal))
    assert placement.tolist() in ([0, 0, 0, 1, 1], [1, 1, 1, 0, 0])
    unlike = instance(
        list(pairwise(names)), {n: (t, 2 * t) for n, t in zip(names, times, strict=True)}, links
    )
    assert solve(unlike).objective_ns == 11
    loads = [
        placement_loads(problem_of(unlike).native, p) for p in stage_splits(problem_of(unlike))
    ]
    assert min(load.item_ns for load in loads) == 11


def test_co_located_ends_leave_one_stage() -> None:
    """a and c together, b between: all on one device."""
    case = there_and_back()
    tasks = tuple(
        replace(task, together="ends") if task.name != "b" else task for task in case.graph.tasks
    )
    graph = replace(case.graph, tasks=tasks)
    costs = replace(case.costs, tasks=graph.identities)
    result = get_solver("pipeline").solve(Problem(graph, case.cluster, costs), OPTIONS)
    assert result.objective_ns == 26
    assert result.candidates[0][2] == "no stages take less than 26 ns per item"


def test_stages_that_fit_nowhere_are_infeasible() -> None:
    """The first memory holds a and c, the second b; in stages nothing fits."""
    run_ns: dict[str, tuple[int | None, ...]] = {
        "a": (3, None),
        "b": (None, 6),
        "c": (3, None),
    }
    case = instance([("a", "b"), ("b", "c")], run_ns, gpus({(0, 1): 1, (1, 0): 1}, 2))
    assert solve(case, "throughput").objective_ns == 10
    with pytest.raises(InfeasibleError, match=r"no plan exists .* one contiguous stage"):
        solve(case)


def test_splits_end_at_their_deadline() -> None:
    problem = problem_of(chain(6))
    assert stage_splits(problem)
    assert stage_splits(problem, Deadline.after(-1.0)) == []


def test_splits_on_so_many_devices_that_their_loads_take_gigabytes_are_left_out() -> None:
    names = [f"t{i}" for i in range(400)]
    case = instance(list(pairwise(names)), dict.fromkeys(names, (1,) * 300), gpus({}, 300))
    assert stage_splits(problem_of(case)) == []


def test_programme_with_an_order_of_many_devices_is_not_small() -> None:
    """300 devices have 9 million cycles of three; without stages the programme has no such rows."""
    names = [f"t{i}" for i in range(6)]
    devices = tuple(Device(f"cpu.{i}", "cpu", "", 0, 0, (i,)) for i in range(300))
    cluster = Cluster("many", (Memory("ram", 10**9),), devices)
    problem = problem_of(instance(list(pairwise(names)), dict.fromkeys(names, (1,) * 300), cluster))
    assert is_small(problem)
    assert not is_small(problem, is_contiguous=True)
    assert is_small(problem_of(chain(100)), is_contiguous=True)


def test_splits_know_what_was_measured_of_links() -> None:
    """10 bytes took 500 ns, not 1: stages of three and three tasks would wait for the copy."""
    names = [f"t{i}" for i in range(6)]
    run_ns = dict.fromkeys(names, (20, 20))
    cluster = gpus({(0, 1): 10, (1, 0): 10}, 2)
    links = tuple(replace(link, measured=((10, 500), (20, 510))) for link in cluster.links)
    fast, slow = (
        stage_splits(problem_of(instance(list(pairwise(names)), run_ns, one)))[0].tolist()
        for one in (cluster, replace(cluster, links=links))
    )
    assert sorted(fast) == [0, 0, 0, 1, 1, 1]
    assert len(set(slow)) == 1
