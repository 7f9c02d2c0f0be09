"""The core's simulator on explicit schedules: against the references, and its properties."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace import _core
from heteroplace.errors import CostMismatchError, PlanError, SolverError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.memory_use.live_memory import LivePeak, held_bytes, live_peaks
from heteroplace.model.memory_use.memory import plan_memory_use
from heteroplace.model.plan import Collective, Copy, Plan, Run, Step
from heteroplace.model.step_values import occupied
from heteroplace.model.timeline import Timeline
from heteroplace.native.core_problem import NativeProblem
from heteroplace.native.simulate import simulate_steps
from heteroplace.simulate.simulator import simulate
from heteroplace.solve.problem import Problem
from tests.explicit_plans import explicit_plans
from tests.reference import simulator as reference
from tests.reference.live_memory import reference_peaks
from tests.strategies import Instance, exact_cases
from tests.unit.model.test_check_explicit import DW, SUM, good_steps, on_two_devices, step_graph

ANY = explicit_plans()
Case = tuple[Instance, Plan]


def run(case: Instance, plan: Plan) -> Timeline:
    return simulate(case.graph, case.cluster, case.costs, plan)


def times_of(timeline: Timeline) -> list[tuple[int, int]]:
    return [times for _, times in sorted(timeline.step_times.items())]


@given(ANY)
@exact_cases(50)
def test_core_equals_the_references_on_explicit_plans(case: Case) -> None:
    found, plan = case
    expected = reference.reference_times(found.graph, found.cluster, found.costs, plan)
    timeline = run(found, plan)
    assert {span.step for span in timeline.spans} == set(range(len(plan.steps)))
    for span in timeline.spans:
        assert (span.start_ns, span.finish_ns) == expected[span.step]
    peaks = zip(timeline.peak_bytes, timeline.peaks, strict=True)
    assert [(size, peak.time_ns, peak.step) for size, peak in peaks] == reference_peaks(
        found.graph, found.cluster, plan, expected
    )


@given(ANY)
@exact_cases(50)
def test_core_and_python_agree_on_the_memory_of_explicit_plans(case: Case) -> None:
    found, plan = case
    timeline = run(found, plan)
    peaks = zip(timeline.peak_bytes, timeline.peaks, strict=True)
    expected = live_peaks(found.graph, found.cluster, found.costs, plan)
    assert [LivePeak(size, peak.step) for size, peak in peaks] == list(expected)
    assert timeline.used_bytes == plan_memory_use(found.graph, found.cluster, plan)
    native = NativeProblem(found.graph, found.cluster, found.costs)
    held = simulate_steps(native, plan.steps, plan.items).held_bytes
    assert list(held) == held_bytes(found.graph, found.cluster, plan)
    for least, live, static in zip(held, timeline.peak_bytes, timeline.used_bytes, strict=True):
        assert least <= live <= static


@given(ANY)
@exact_cases(50)
def test_the_makespan_is_the_longest_path_of_steps(case: Case) -> None:
    """An oracle that looks at neighbours on a resource only, and adds up backward from the end."""
    found, plan = case
    used, waits = reference.edges(found.graph, found.cluster, plan)
    after: list[set[int]] = [set() for _ in plan.steps]
    for index, before in enumerate(waits):
        for earlier in before:
            after[earlier].add(index)
    for resource in set().union(*used):
        own = [index for index, resources in enumerate(used) if resource in resources]
        for earlier, later in pairwise(own):
            after[earlier].add(later)
    durations = [
        reference.duration(found.graph, found.cluster, found.costs, step) for step in plan.steps
    ]
    tail = [0] * len(plan.steps)
    for index in reversed(range(len(plan.steps))):
        tail[index] = durations[index] + max((tail[later] for later in after[index]), default=0)
    makespan = run(found, plan).makespan_ns
    assert makespan == max(tail)
    assert makespan <= sum(durations)


@given(ANY, st.data())
@exact_cases(50)
def test_longer_tasks_and_slower_links_never_shorten_a_plan(
    case: Case, data: st.DataObject
) -> None:
    found, plan = case
    before = run(found, plan).makespan_ns
    task = data.draw(st.integers(0, len(found.graph.tasks) - 1))
    width = len(found.cluster.devices)
    longer = []
    for times in found.costs.ns:
        times = times[:]
        for cell in range(task * width, (task + 1) * width):
            times[cell] += 5 if times[cell] >= 0 else 0
        longer.append(times)
    costs = replace(found.costs, ns=tuple(longer))
    assert run(replace(found, costs=costs), plan).makespan_ns >= before
    links = tuple(
        replace(link, bytes_per_second=link.bytes_per_second // 2, latency_ns=link.latency_ns + 1)
        for link in found.cluster.links
    )
    assert run(*moved(found, plan, replace(found.cluster, links=links))).makespan_ns >= before
    devices = tuple(
        replace(device, memory_bytes_per_second=10**8, launch_ns=device.launch_ns + 1)
        for device in found.cluster.devices
    )
    slower = replace(found.cluster, devices=devices)
    assert run(*moved(found, plan, slower)).makespan_ns >= before


def moved(case: Instance, plan: Plan, cluster: Cluster) -> Case:
    """The same steps and times on another cluster."""
    costs = replace(case.costs, devices=cluster.identities)
    return Instance(case.graph, cluster, costs), replace(plan, cluster_digest=cluster.digest())


@given(ANY, st.data())
@exact_cases(50)
def test_neighbours_that_share_nothing_may_change_places(case: Case, data: st.DataObject) -> None:
    found, plan = case
    used, waits = reference.edges(found.graph, found.cluster, plan)
    free = [
        first
        for first in range(len(plan.steps) - 1)
        if not used[first] & used[first + 1]
        and first not in waits[first + 1]
        # What is made anew, and what is read of it, keep their order.
        and not touched(found, plan, first) & touched(found, plan, first + 1)
    ]
    if not free:
        return
    first = data.draw(st.sampled_from(free))
    steps = list(plan.steps)
    steps[first], steps[first + 1] = steps[first + 1], steps[first]
    before, after = run(found, plan), run(found, replace(plan, steps=tuple(steps)))
    assert sorted(times_of(before)) == sorted(times_of(after))


def touched(case: Instance, plan: Plan, index: int) -> set[tuple[int, int, int]]:
    """The shared values that a step reads or makes; of an update, the state."""
    found = reference.puts(case.graph, case.cluster, plan, index) | reference.needs(
        case.graph, case.cluster, plan, index
    )
    return {(case.graph.state_of.get(key[0], key[0]), *key[1:]) for key in found}


def alike(case: Instance) -> Instance:
    """Devices, links and costs that differ in nothing but names; no host."""
    cluster = case.cluster
    links = tuple(
        replace(link, bytes_per_second=10**9, latency_ns=1, channel=link.name)
        for link in cluster.links
    )
    devices = tuple(
        replace(device, memory_bytes_per_second=None, launch_ns=1, copy_engines=1)
        for device in cluster.devices
    )
    cluster = replace(cluster, links=links, devices=devices, host=None, congestion="channel")
    costs = build_table(
        case.graph, cluster, lambda task, _, batch: Cost.given(task + 3 * batch), (1, 2, 3)
    )
    return Instance(case.graph, cluster, costs)


@given(explicit_plans(), st.randoms(use_true_random=False))
@exact_cases(50)
def test_other_names_of_equal_devices_change_nothing(case: Case, random) -> None:  # type: ignore[no-untyped-def]
    found, plan = alike(case[0]), case[1]
    to = list(range(len(found.cluster.devices)))
    random.shuffle(to)
    memories = [*to, *range(len(to), len(found.cluster.memories))]

    def renamed(step: Step) -> Step:
        if isinstance(step, Run):
            return replace(step, device=to[step.device])
        if isinstance(step, Collective):
            return replace(step, devices=tuple(to[device] for device in step.devices))
        src, dst = memories[step.src], memories[step.dst]
        return Copy(step.tensor, src, dst, found.cluster.route(src, dst), step.items)

    other = replace(plan, steps=tuple(map(renamed, plan.steps)))
    before, after = run(found, plan), run(found, other)
    assert times_of(before) == times_of(after)
    assert [after.peak_bytes[memory] for memory in memories] == list(before.peak_bytes)


@given(ANY)
@exact_cases(50)
def test_resources_serve_one_step_at_a_time_and_collectives_all_at_once(case: Case) -> None:
    found, plan = case
    timeline = run(found, plan)
    served: dict[int, list[tuple[int, int]]] = {}
    for index, step in enumerate(plan.steps):
        for resource in occupied(found.graph, found.cluster, step):
            served.setdefault(resource, []).append(timeline.step_times[index])
        spans = [span for span in timeline.spans if span.step == index]
        assert len({(span.start_ns, span.finish_ns) for span in spans}) == 1
        if isinstance(step, Collective):
            names = {found.cluster.devices[device].name for device in step.devices}
            units = {unit for d in step.devices for unit in found.cluster.unit_ids[d]}
            has_units = units <= set(occupied(found.graph, found.cluster, step))
            assert (names <= {span.resource for span in spans}) == has_units
    for spans in served.values():
        for (_, finish), (start, _) in pairwise(spans):
            assert finish <= start


def blocking(case: Instance) -> Instance:
    """Whatever touches a memory takes its device: what is live follows from the order alone."""
    devices = tuple(replace(device, copy_engines=0) for device in case.cluster.devices)
    cluster = replace(case.cluster, devices=devices)
    return Instance(case.graph, cluster, replace(case.costs, devices=cluster.identities))


def with_doubled_bytes(graph: TaskGraph) -> TaskGraph:
    tensors = tuple(replace(tensor, bytes=2 * tensor.bytes) for tensor in graph.tensors)
    tasks = tuple(
        replace(
            task,
            weight_bytes=2 * task.weight_bytes,
            workspace_bytes=2 * task.workspace_bytes,
            weights=tuple((name, 2 * num_bytes) for name, num_bytes in task.weights),
        )
        for task in graph.tasks
    )
    return replace(graph, tasks=tasks, tensors=tensors)


@given(explicit_plans())
@exact_cases(50)
def test_peaks_of_blocking_plans_hang_on_no_cost_and_double_with_the_bytes(case: Case) -> None:
    found, plan = blocking(case[0]), case[1]
    of_devices = sorted({device.memory for device in found.cluster.devices})
    peaks = run(found, plan).peak_bytes
    slow = build_table(found.graph, found.cluster, lambda *_: Cost.given(1000), (1, 2, 3))
    others = run(replace(found, costs=slow), plan).peak_bytes
    assert [others[memory] for memory in of_devices] == [peaks[memory] for memory in of_devices]
    graph = with_doubled_bytes(found.graph)
    costs = replace(found.costs, tasks=graph.identities)
    doubled = run(Instance(graph, found.cluster, costs), plan).peak_bytes
    assert [doubled[memory] for memory in of_devices] == [2 * peaks[m] for m in of_devices]


def test_members_of_one_memory_exchange_nothing() -> None:
    """Two devices of one memory: the collective costs its sums and its start alone."""
    case = on_two_devices(step_graph())
    devices = tuple(
        replace(device, memory=0, memory_bytes_per_second=10**9, launch_ns=7, copy_engines=2)
        for device in case.cluster.devices
    )
    cluster = replace(case.cluster, devices=devices)
    builder_steps = good_steps()
    lanes = Collective(SUM, (0, 1), (0, 1))
    times = occupied(case.graph, cluster, lanes)
    assert times == (0, 1)
    assert reference.resources(case.graph, cluster, Plan("", "", (lanes,), "", items=2), 0) == {
        "/cuda0",
        "/cuda1",
    }
    assert reference.duration(case.graph, cluster, case.costs, lanes) == 2 * 4 + 7
    assert builder_steps[4] == lanes


def test_devices_with_copy_engines_go_on_beside_a_collective() -> None:
    """The second gradient is made while the first one is summed, unless copies block devices."""
    case = on_two_devices(step_graph())
    links = tuple(replace(link, latency_ns=100) for link in case.cluster.links)

    def makespan(copy_engines: int | None) -> tuple[int, int]:
        devices = tuple(
            replace(device, copy_engines=copy_engines) for device in case.cluster.devices
        )
        cluster = replace(case.cluster, links=links, devices=devices)
        steps = (*good_steps()[:5], Run(0, 0, (2,)), *good_steps()[5:])
        plan = Plan(case.graph.digest(), cluster.digest(), steps, "test", items=3)
        found = Instance(case.graph, cluster, replace(case.costs, devices=cluster.identities))
        native = NativeProblem(found.graph, found.cluster, found.costs)
        times = simulate_steps(native, plan.steps, 3)
        return int(times.start_ns[5]), int(times.finish_ns[4])

    assert makespan(1) == (2, 203)
    assert makespan(2) == (2, 203)
    assert makespan(0) == (203, 203)
    assert makespan(None) == (203, 203)


def test_a_faulty_collective_is_told_by_the_check() -> None:
    case = on_two_devices(step_graph())
    steps = good_steps()
    for wrong in (Collective(SUM, (0, 9), (0, 1)), Collective(DW, (0, 1)), Collective(99, (0, 1))):
        faulty = (*steps[:4], wrong, *steps[5:])
        plan = Plan(case.graph.digest(), case.cluster.digest(), faulty, "test", items=2)
        with pytest.raises(PlanError, match=r"has .* fault"):
            run(case, plan)


def test_the_core_refuses_collectives_that_do_not_exist() -> None:
    case = on_two_devices(step_graph())
    native = NativeProblem(case.graph, case.cluster, case.costs)
    rows = np.array([[2, SUM, 0, -1]], dtype=np.int64)
    empty = np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int64)
    nothing = np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    one = np.array([0, 1], dtype=np.int64)
    for reads, devices, time_ns in (
        ((one, np.array([0], dtype=np.int64)), empty, 1),
        ((np.array([0, 2]), np.array([99, 0])), empty, 1),
        (empty, (one, np.array([9])), 1),
        (empty, empty, -1),
    ):
        arrays = (reads, empty, devices, empty, np.array([time_ns], dtype=np.int64))
        with pytest.raises(PlanError, match="names an id that does not exist"):
            _core.simulate(native, rows, empty, nothing, 1, arrays)
    with pytest.raises(PlanError, match="step 0 has an id that does not exist"):
        _core.simulate(native, rows, empty, nothing, 1)


def test_times_of_collectives_are_limited_like_all_others() -> None:
    case = on_two_devices(step_graph())
    links = tuple(replace(link, latency_ns=2**59) for link in case.cluster.links)
    found, plan = moved(
        case,
        Plan(case.graph.digest(), "", tuple(good_steps()), "test", items=2),
        replace(case.cluster, links=links),
    )
    with pytest.raises(CostMismatchError, match="expected at most"):
        run(found, plan)


def test_solvers_refuse_what_only_explicit_schedules_can_use() -> None:
    case = on_two_devices(step_graph())
    with pytest.raises(SolverError, match="graph 'step' has the collective 'sum': solvers place"):
        Problem(case.graph, case.cluster, case.costs)


def test_a_pipeline_counts_only_what_its_own_memory_takes() -> None:
    """Two stages: what the first has done with is free although the second is far behind."""
    builder = TaskGraphBuilder("stages")
    for name, reads in (("a", []), ("b", ["a.0"]), ("c", ["b.0"]), ("d", [])):
        builder.add_task(Task(name, "op"), reads)
        builder.add_tensor(name, (10,), "int8")
    graph = builder.finalize(["c.0", "d.0"])
    memories = (Memory("m0", 100), Memory("m1", 100))
    devices = (Device("d0", "cuda", "", 0, 0), Device("d1", "cuda", "", 1, 1))
    cluster = Cluster("two", memories, devices, (Link("l", 0, 1, 10**9, 0, "l"),))
    costs = build_table(graph, cluster, lambda *_: Cost.given(10))
    # d starts at 0 on the other device, and is listed last.
    steps = (Run(0, 0), Run(1, 0), Run(2, 0), Run(3, 1))
    assert [graph.tasks[step.task].name for step in steps] == ["a", "b", "c", "d"]
    plan = Plan(graph.digest(), cluster.digest(), steps, "test")
    assert run(Instance(graph, cluster, costs), plan).peak_bytes == (20, 10)
