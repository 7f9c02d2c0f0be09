"""what_if: the same plan on another cluster, and a new one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from heteroplace.errors import ClusterError, SolverError
from heteroplace.model.check import check_plan
from heteroplace.model.collectives import CollectiveCosts
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.implementations import base_of, twin_name
from heteroplace.model.plan import Plan, Run
from heteroplace.model.solution import Solution
from heteroplace.simulate.simulator import simulate
from heteroplace.simulate.throughput import repeat_plan
from heteroplace.solve import SolveOptions, solve_network
from tests.instances import cpu, gpus, instance, problem_of
from tests.strategies import AMPLE, Instance, exact_cases, instances_with_plan
from tests.unit.files.test_solution import with_targets
from tests.unit.questions.worked import diamond_solution, lanes_solution, solution_of

SHORT = SolveOptions(iterations=200, threads=1)


def chains(num_devices: int = 1) -> Solution:
    """Two chains of 50 ns each on GPUs beside a host, whose copies take little."""
    links = {}
    for device in range(1, num_devices + 1):
        links |= {(0, device): 10, (device, 0): 10}
    cluster = gpus(links, num_devices + 1, host=0)
    cluster = replace(cluster, devices=cluster.devices[1:])
    case = instance([], {name: (50,) * num_devices for name in "ab"}, cluster)
    return solve_network(problem_of(with_targets(case)), SHORT, solver="heft")


def test_a_second_gpu_like_the_first_halves_two_chains() -> None:
    one = chains()
    found = one.what_if(add_device={"gpu9": "gpu1"}, solve=True, solver="heft", options=SHORT)
    assert found.same_ns == found.before_ns == one.predicted_ns
    assert found.changes == (
        "device gpu9 added, like gpu1, with a memory and links of its own like those",
    )
    assert found.solution is not None
    # As if the cluster had been written by hand with two of them.
    assert found.solution.predicted_ns == chains(2).predicted_ns < one.predicted_ns
    assert {memory.name for memory in found.cluster.memories} == {"m0", "m1", "gpu9"}
    check_plan(one.graph, found.cluster, found.solution.costs, found.solution.plan)
    assert "placed again" in str(found)


def test_a_core_is_added_in_the_memory_of_the_others() -> None:
    case = with_targets(instance([], dict.fromkeys("ab", (9, 9, 9)), cpu()))
    solution = solve_network(problem_of(case), SHORT, solver="heft")
    found = solution.what_if(add_device={"cpu.2": "cpu.1"})
    assert found.cluster.devices[-1].cores == (2,)
    assert len(found.cluster.memories) == 1
    assert "on core 2" in found.changes[0]


def test_a_plan_whose_device_is_gone_cannot_run_but_is_made_again() -> None:
    solution = diamond_solution()
    found = solution.what_if(drop_device=["gpu1"], solve=True, solver="heft", options=SHORT)
    assert (found.same_ns, found.same_note) == (None, "it has tasks on gpu1")
    assert found.solution is not None
    assert found.solution.predicted_ns == 12
    assert [memory.name for memory in found.cluster.memories] == ["m0"]
    assert "not possible" in str(found)


def test_a_slower_link_lengthens_its_copies() -> None:
    solution = diamond_solution()
    # a's copy to gpu1 takes 1 ns and c's copy back 2 ns: of 10 ns both are waited for.
    assert solution.what_if(scale_link={"1-0": 0.5}).same_ns == 12
    assert solution.what_if(scale_link={"*": 0.5}).same_ns == 13
    assert solution.what_if(scale_link={"*": 2.0}).same_ns == 9


def test_times_of_a_measured_link_are_scaled_too() -> None:
    solution = diamond_solution()
    links = tuple(replace(link, measured=((10, 8),)) for link in solution.cluster.links)
    cluster = replace(solution.cluster, links=links)
    found = replace(solution, cluster=cluster).what_if(scale_link={"0-1": 2.0})
    assert [link.measured for link in found.cluster.links] == [((10, 4),), ((10, 8),)]
    with pytest.raises(ClusterError, match="a measured time in ns, would be"):
        replace(solution, cluster=cluster).what_if(scale_link={"0-1": 1e-300})


def test_a_memory_that_is_too_small_is_said() -> None:
    found = diamond_solution().what_if(memory={"gpu0": 15})
    assert found.same_ns is None
    assert "m0" in found.same_note
    assert diamond_solution().what_if(memory={"m0": "1 GiB"}).same_ns == 10


def test_a_batch_is_judged_on_the_changed_cluster() -> None:
    case = with_targets(instance([("a", "b")], {"a": (4, 4, 2), "b": (6, 6, 3)}, cpu()))
    devices = tuple(replace(each, batch_sizes=(1, 2)) for each in case.cluster.devices)
    cluster = replace(case.cluster, devices=devices)
    costs = build_table(
        case.graph, cluster, lambda _t, _d, batch: Cost.given(5 * batch - 1), batches=(1, 2)
    )
    plan = Plan(case.graph.digest(), cluster.digest(), (Run(0, 0), Run(1, 1)), "by hand")
    solution = solution_of(replace(case, cluster=cluster, costs=costs), plan)
    found = solution.what_if(batch=2, drop_device=["cpu.all"])
    assert (found.same_ns, found.same_note) == (18, "as one batch of 2")


def test_items_without_costs_of_batches_run_one_after_the_other() -> None:
    found = diamond_solution().what_if(batch=2)
    assert found.same_ns is not None
    assert 10 < found.same_ns <= 20
    assert "one after the other" in found.same_note


def test_a_batch_of_a_plan_for_throughput_is_told_per_item() -> None:
    # Two tasks of 6 ns, one on each device: an item every 6 ns, a run of one 13 with the copy.
    pair = gpus({(0, 1): 10**6, (1, 0): 10**6}, 2)
    case = with_targets(instance([("a", "b")], {"a": (6, 6), "b": (6, 6)}, pair))
    options = replace(SHORT, objective="throughput", min_gain_ratio=0)
    solution = solve_network(problem_of(case), options, solver="throughput")
    assert (solution.item_ns, solution.predicted_ns) == (6, 13)
    one, many = solution.what_if(batch=1), solution.what_if(batch=8)
    assert (one.before_ns, one.same_ns, one.same_note) == (6, 13, "a run of 1 takes 13 ns")
    run = simulate(case.graph, case.cluster, case.costs, repeat_plan(solution.plan, 8))
    assert run.makespan_ns == 8 * 6 + 1 + 6
    assert (many.before_ns, many.same_ns, many.is_per_item) == (6, 7, True)
    assert many.same_note.startswith("a run of 8 takes 55 ns, one after the other")
    with pytest.raises(SolverError, match="batch=8 with solve: the plan is for throughput"):
        solution.what_if(batch=8, solve=True)


def of_two_kernels() -> Solution:
    """Four tasks of 50 ns on a GPU beside a host, whose twin takes 20; not all may run on all."""
    links = {(0, 1): 10, (1, 0): 10}
    cluster = gpus(links, 2, host=0)
    host, gpu = cluster.devices
    twin = replace(gpu, name=twin_name(gpu.name, "cublas"))
    cluster = replace(cluster, devices=(host, gpu, twin))
    case = with_targets(instance([], dict.fromkeys("abcd", (900, 50, 20)), cluster))
    tasks = (
        replace(case.graph.tasks[0], devices=(host.name, gpu.name)),
        *(replace(task, devices=(gpu.name, twin.name)) for task in case.graph.tasks[1:]),
    )
    case = replace(case, graph=replace(case.graph, tasks=tasks))
    return solve_network(problem_of(case), SHORT, solver="heft")


def test_a_device_is_added_with_its_other_kernels() -> None:
    one = of_two_kernels()
    found = one.what_if(add_device={"gpu9": "gpu1"})
    assert found.changes == (
        "device gpu9 added, like gpu1, with a memory and links of its own like those; "
        "gpu9:cublas too",
    )
    new, twin = found.cluster.devices[-2:]
    assert (new.name, twin.name) == ("gpu9", "gpu9:cublas")
    assert base_of(found.cluster, 4) == 3 and new.memory == twin.memory
    assert [memory.name for memory in found.cluster.memories] == ["m0", "m1", "gpu9"]
    assert found.same_ns == one.predicted_ns
    with pytest.raises(ClusterError, match="there is a device 'gpu9:cublas' already"):
        one.what_if(add_device={"gpu9:cublas": "gpu0", "gpu9": "gpu1"})


def test_tasks_that_name_their_devices_use_one_that_is_added() -> None:
    one = of_two_kernels()
    added = {"gpu8": "gpu1", "gpu9": "gpu8"}
    found = one.what_if(add_device=added, solve=True, solver="heft", options=SHORT).solution
    assert found is not None
    assert found.graph.tasks[0].devices == ("gpu0", "gpu1", "gpu8", "gpu9")
    assert found.graph.tasks[1].devices == (
        *("gpu1", "gpu1:cublas", "gpu8", "gpu8:cublas", "gpu9", "gpu9:cublas"),
    )
    assert {"gpu8", "gpu8:cublas", "gpu9", "gpu9:cublas"} & set(found.devices_used)
    assert found.predicted_ns < one.predicted_ns


def test_a_device_is_dropped_with_its_other_kernels() -> None:
    solution = of_two_kernels()
    tasks = tuple(replace(task, devices=None) for task in solution.graph.tasks)
    graph = replace(solution.graph, tasks=tasks)
    plan = replace(solution.plan, graph_digest=graph.digest())
    free = replace(solution, graph=graph, plan=plan)
    found = free.what_if(drop_device=["gpu1"], solve=True, solver="heft", options=SHORT)
    assert found.changes == ("device gpu1, gpu1:cublas dropped, with its memory and links",)
    assert found.solution is not None
    assert found.solution.devices_used == ("gpu0",)
    only = free.what_if(drop_device=["gpu1:cublas"])
    assert [device.name for device in only.cluster.devices] == ["gpu0", "gpu1"]
    with pytest.raises(ClusterError, match="'gpu1' is the last device"):
        free.what_if(drop_device=["gpu0", "gpu1"])


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({}, SolverError, "nothing is to be other"),
        ({"batch": 0}, SolverError, "batch must be at least 1"),
        ({"add_device": {"x": "gpu7"}}, ClusterError, "no device 'gpu7'; did you mean"),
        ({"add_device": {"gpu0": "gpu1"}}, ClusterError, "there is a device 'gpu0' already"),
        ({"add_device": {"m0": "gpu1"}}, ClusterError, "there is a memory 'm0' already"),
        ({"drop_device": ["gpu0", "gpu1"]}, ClusterError, "'gpu1' is the last device"),
        ({"scale_link": {"zz": 2.0}}, ClusterError, "no link or channel 'zz'; it has: 0-1, 1-0"),
        ({"scale_link": {"0-1": 0.0}}, ClusterError, "expected a factor above 0"),
        ({"scale_link": {"0-1": 1e300}}, ClusterError, r"0-1=1e\+300: the bandwidth .* would be"),
        ({"scale_link": {"*": 1e308}}, ClusterError, "is at most 9223372036854775807"),
        ({"memory": {"m7": 5}}, ClusterError, "no memory or device 'm7'; it has: m0, m1"),
        ({"memory": {"m0": "5 apples"}}, ClusterError, "m0=5 apples; expected a size"),
    ],
)
def test_wrong_changes_are_told(changes: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        diamond_solution().what_if(**changes)


@given(instances_with_plan(max_tasks=6))
@exact_cases(20)
def test_a_cluster_that_is_larger_but_not_used_changes_nothing(case: tuple[Instance, Plan]) -> None:
    found = with_targets(case[0])
    solution = solution_of(found, replace(case[1], cluster_digest=found.cluster.digest()))
    like = solution.cluster.devices[0].name
    answer = solution.what_if(add_device={"new": like}, memory={like: 2 * AMPLE})
    assert answer.same_ns == solution.predicted_ns, answer.same_note


@given(instances_with_plan(max_tasks=5))
@exact_cases(20)
def test_faster_links_never_lengthen_the_same_plan(case: tuple[Instance, Plan]) -> None:
    found = with_targets(case[0])
    if not found.cluster.links:
        return
    solution = solution_of(found, replace(case[1], cluster_digest=found.cluster.digest()))
    answer = solution.what_if(scale_link={"*": 3.0})
    assert answer.same_ns is not None, answer.same_note
    assert answer.same_ns <= solution.predicted_ns


def test_measured_collectives_do_not_outlive_the_links_they_were_measured_on() -> None:
    plain = lanes_solution()
    fits = CollectiveCosts((("all_reduce", 2, 0.5, 2000.0),))
    measured = replace(plain, costs=replace(plain.costs, collectives=fits))
    found = measured.what_if(scale_link={"*": 0.5})
    assert found.same_ns == plain.what_if(scale_link={"*": 0.5}).same_ns
    assert "rings over the links" in found.same_note
    assert "rings" not in measured.what_if(memory={"m0": "1 GiB"}).same_note
