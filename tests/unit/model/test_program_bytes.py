"""Live bytes as a compiled program has them: views, what a giver keeps, what members are sent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.collectives import collective_op
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.memory_use.live_memory import live_peaks
from heteroplace.model.plan import Collective, Copy, Plan, Run, Step


def two_devices(hosts: Sequence[str] = ("", "")) -> Cluster:
    devices = tuple(
        Device(f"d{n}", "cpu", "", 0, n, (n,), hosts[n], copy_engines=0) for n in range(2)
    )
    links = (Link("up", 0, 1, 10**9, 1, "up"), Link("down", 1, 0, 10**9, 1, "down"))
    memories = (Memory("m0", 10**6), Memory("m1", 10**6))
    return Cluster("two", memories, devices, links, 0)


def peaks(
    graph: TaskGraph, cluster: Cluster, steps: Sequence[Step], views: set[int] | None
) -> list[int]:
    costs: CostTable = build_table(graph, cluster, lambda task, device: Cost.given(10))
    plan = Plan(graph.digest(), cluster.digest(), tuple(steps), "by hand")
    check_plan(graph, cluster, costs, plan)
    return [peak.num_bytes for peak in live_peaks(graph, cluster, costs, plan, views)]


def test_a_view_is_the_value_that_it_shows_for_as_long_as_it_is_read() -> None:
    builder = TaskGraphBuilder("view")
    builder.add_input("x", num_bytes=8)
    builder.add_task(Task("a", "op"), ["x"])
    builder.add_tensor("a", num_bytes=100)
    builder.add_task(Task("v", "reshape"), ["a.0"])
    builder.add_tensor("v", num_bytes=100)
    builder.add_task(Task("b", "op"), ["a.0"])
    builder.add_tensor("b", num_bytes=30)
    builder.add_task(Task("c", "op"), ["b.0", "v.0"])
    builder.add_tensor("c", num_bytes=4)
    graph = builder.finalize(["c.0"])
    steps = [Run(task, 0) for task in range(4)]
    view = next(index for index, task in enumerate(graph.tasks) if task.name == "v")
    assert peaks(graph, two_devices(), steps, None) == [8 + 100 + 100 + 30, 0]
    assert peaks(graph, two_devices(), steps, {view}) == [8 + 100 + 30 + 4, 0]


def test_the_giver_of_a_broadcast_has_what_it_gives_once() -> None:
    builder = TaskGraphBuilder("broadcast")
    builder.add_input("x", num_bytes=8)
    builder.add_task(Task("a", "op"), ["x"])
    builder.add_tensor("a", num_bytes=100)
    builder.add_task(Task("give", collective_op("broadcast")), ["a.0"])
    builder.add_tensor("give", num_bytes=100)
    builder.add_task(Task("b", "op"), ["give.0"])
    builder.add_tensor("b", num_bytes=4)
    graph = builder.finalize(["b.0"])
    steps = [Run(0, 0), Collective(1, (0, 1)), Run(2, 0)]
    assert peaks(graph, two_devices(), steps, None) == [8 + 100 + 100, 100]
    assert peaks(graph, two_devices(), steps, set()) == [8 + 100 + 4, 100]


@pytest.mark.parametrize(
    ("kind", "hosts", "sent"),
    [
        ("all_gather", ("", ""), 0),
        ("all_gather", ("one", "two"), 100),
        ("all_reduce", ("one", "two"), 0),  # what is sent becomes the sum
    ],
)
def test_members_get_what_is_on_other_hosts(kind: str, hosts: tuple[str, str], sent: int) -> None:
    builder = TaskGraphBuilder("lanes")
    builder.add_input("x", num_bytes=8)
    for name in ("a", "b"):
        builder.add_task(Task(name, "op"), ["x"])
        builder.add_tensor(name, num_bytes=100)
    builder.add_task(Task("join", collective_op(kind)), ["a.0", "b.0"])
    size = 200 if kind == "all_gather" else 100
    builder.add_tensor("join", num_bytes=size)
    graph = builder.finalize(["join.0"])
    cluster = two_devices(hosts)
    steps = [Copy(0, 0, 1, (0,)), Run(0, 0), Run(1, 1), Collective(2, (0, 1))]
    plain = peaks(graph, cluster, steps, None)
    assert plain == [8 + 100 + size, 100 + size]
    assert peaks(graph, cluster, steps, set()) == [of_memory + sent for of_memory in plain]
