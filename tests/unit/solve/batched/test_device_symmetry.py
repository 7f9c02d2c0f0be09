"""Which devices and nodes are equal, and the one order that stands for all."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import SolverError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import table_from_rows
from heteroplace.model.plan import Copy, Run
from heteroplace.parts.throughput.batched.device_symmetry import (
    EQUAL_WITHIN,
    MAX_IMAGES,
    DeviceSymmetry,
    device_symmetry,
)
from heteroplace.parts.throughput.batched.equal_nodes import equal_nodes, node_problem, replicated
from heteroplace.solve import Problem
from heteroplace.solve.deadline import Deadline, TimeUpError
from tests.instances import gpus, instance
from tests.strategies import num_cases
from tests.unit.solve.batched.test_divi import nodes
from zoo.graphs.catalogue import get_instance

SIX = DeviceSymmetry((((0, 1, 2), (3, 4, 5)),), ((0,), (1, 2), (3,), (4, 5)))
"""Two nodes of one device and two equal ones."""


def unlike(times: tuple[int, int]) -> Problem:
    case = instance([], {"a": times}, gpus({(0, 1): 1, (1, 0): 1}, 2))
    return Problem(case.graph, case.cluster, case.costs)


def test_six_nodes_have_the_orders_that_the_paper_counts() -> None:
    """DiviML, section IV-F: two pairs of equal GPUs in each of six nodes, 4**6 * 6!."""
    found = device_symmetry(get_instance("gpt3-decode/six-nodes").build())
    assert found.num_orders == 4**6 * math.factorial(6) == 2_949_120


@pytest.mark.parametrize(("times", "is_equal"), [((1000, 1010), True), ((1000, 1011), False)])
def test_devices_are_equal_within_one_per_cent(times: tuple[int, int], is_equal: bool) -> None:
    problem = unlike(times)
    assert (device_symmetry(problem, EQUAL_WITHIN).num_orders == 2) == is_equal
    assert device_symmetry(problem).num_orders == 1


def other_order(problem: Problem, order: tuple[int, ...]) -> Problem:
    """The same cluster with its devices in another order."""
    cluster, costs = problem.cluster, problem.costs
    devices = tuple(replace(cluster.devices[device], index=device) for device in order)
    cluster = replace(cluster, devices=devices)
    sizes = {
        size: tuple(
            tuple(costs.cost(task, device, size) for device in order)
            for task in range(len(problem.graph.tasks))
        )
        for size in costs.batches
    }
    rows = sizes.pop(1)
    return Problem(problem.graph, cluster, table_from_rows(problem.graph, cluster, rows, sizes))


def test_devices_of_equal_nodes_are_matched_by_what_they_are() -> None:
    """The second node names its CPU last, the third in the middle; the paper's count stays."""
    problem = get_instance("gpt3-decode/six-nodes").build()
    order = (*range(5), 6, 7, 8, 9, 5, 13, 11, 10, 14, 12, *range(15, 30))
    found = device_symmetry(other_order(problem, order))
    assert found.num_orders == 2_949_120
    (nodes_of,) = found.node_classes
    assert nodes_of[:3] == ((0, 1, 2, 3, 4), (9, 5, 6, 7, 8), (12, 11, 14, 10, 13))


def ring(order: tuple[int, ...], speeds: tuple[int, ...]) -> Problem:
    """Two nodes of four equal devices, each a ring; in the second they come in another order.

    `speeds`: of the four links of each ring, in bytes per ns.
    """
    memories = tuple(Memory(f"m{i}", 10**6) for i in range(8))
    devices = [Device(f"gpu{i}", "cuda", "", i % 4, i, host=f"node{i // 4}") for i in range(8)]
    links = []
    for node in (0, 4):
        for at, speed in enumerate(speeds):
            ends = node + at, node + (at + 1) % 4
            for src, dst in (ends, ends[::-1]):
                links.append(Link(f"{src}-{dst}", src, dst, speed * 10**9, 1, f"{src}-{dst}"))
    placed = (*devices[:4], *(devices[4 + at] for at in order))
    cluster = Cluster("rings", memories, placed, tuple(links))
    case = instance([("a", "b")], {"a": (5,) * 8, "b": (5,) * 8}, cluster)
    return Problem(case.graph, case.cluster, case.costs)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_nodes_are_matched_by_their_links(order: tuple[int, ...]) -> None:
    problem = ring(order, (1, 2, 3, 4))
    ((first, second),) = device_symmetry(problem).node_classes
    assert first == (0, 1, 2, 3)
    assert [problem.cluster.devices[device].memory - 4 for device in second] == [0, 1, 2, 3]


def test_nodes_of_unlike_rings_are_not_equal() -> None:
    problem = ring((0, 1, 2, 3), (1, 2, 3, 4))
    links = [replace(link, bytes_per_second=10**9) for link in problem.cluster.links]
    cluster = replace(problem.cluster, links=(*problem.cluster.links[:8], *links[8:]))
    other = Problem(problem.graph, cluster, replace(problem.costs, devices=cluster.identities))
    assert [len(known) for known in device_symmetry(other).node_classes] == [1, 1]


def test_a_slower_way_makes_nodes_unlike() -> None:
    problem = nodes((3, 5, 4, 2))
    assert device_symmetry(problem).num_orders == 8
    links = [replace(problem.cluster.links[0], bytes_per_second=10**9), *problem.cluster.links[1:]]
    cluster = replace(problem.cluster, links=tuple(links))
    other = Problem(problem.graph, cluster, replace(problem.costs, devices=cluster.identities))
    # Devices of the first node are joined by a slow way there and a fast one back.
    assert device_symmetry(other).exchanges == (((2,), (3,)),)


@pytest.mark.parametrize(("point", "is_equal"), [((1000, 1000), True), ((1000, 1), False)])
def test_links_of_one_bandwidth_that_were_measured_otherwise_are_not_equal(
    point: tuple[int, int], is_equal: bool
) -> None:
    """Both take 1000 ns for 1000 bytes by their bandwidth."""
    case = instance([("a", "b")], {"a": (7, 5, 5), "b": (7, 5, 5)}, gpus({(0, 1): 1, (0, 2): 1}, 3))
    links = tuple(
        replace(link, measured=((1000, 1000) if link.dst == 1 else point,))
        for link in case.cluster.links
    )
    cluster = replace(case.cluster, links=links)
    problem = Problem(case.graph, cluster, replace(case.costs, devices=cluster.identities))
    assert ((1, 2) in device_symmetry(problem, 0.0).device_classes) == is_equal


@given(st.lists(st.integers(0, 2), min_size=6, max_size=6), st.integers(0, 10**6))
@num_cases(100)
def test_exchanges_change_the_order_but_not_what_stands_for_all(
    labels: list[int], seed: int
) -> None:
    moved, random = list(labels), Random(seed)
    for one, other in random.choices(SIX.exchanges, k=8):
        for a, b in zip(one, other, strict=True):
            moved[a], moved[b] = moved[b], moved[a]
    devices, others = SIX.canonical(labels), SIX.canonical(moved)
    assert sorted(devices) == list(range(6))
    assert [labels[d] for d in devices] == [moved[d] for d in others]
    assert tuple(moved) in SIX.images(tuple(labels))


def test_images_are_each_there_once_and_not_too_many() -> None:
    assert len(SIX.images((0, 1, 2, 3, 4, 5))) == SIX.num_orders == 8
    assert SIX.images((1,) * 6) == [(1,) * 6]
    assert SIX.images(()) == [()]
    many = DeviceSymmetry((), (tuple(range(9)),))
    assert len(set(many.images(tuple(range(9))))) == MAX_IMAGES


def test_a_tolerance_out_of_range_is_named() -> None:
    with pytest.raises(SolverError, match=r"must be in \[0, 1\), got -0.5"):
        device_symmetry(unlike((1, 1)), -0.5)


def test_comparing_ends_by_its_deadline() -> None:
    with pytest.raises(TimeUpError):
        device_symmetry(unlike((1, 1)), 0.0, Deadline.after(-1))


def test_a_plan_of_one_node_is_one_for_all() -> None:
    problem = nodes((3, 5, 4, 2))
    found = equal_nodes(problem, 4, device_symmetry(problem))
    assert found == ((0, 1), (2, 3))
    inner = node_problem(problem, found[1])
    assert [device.name for device in inner.cluster.devices] == ["gpu2", "gpu3"]
    assert inner.native.batch_run_ns.shape[2] == 2
    copy = Copy(0, 0, 1, inner.cluster.route(0, 1), (0, 1))
    steps = replicated(problem, found, (Run(0, 0, (0, 1)), copy), 2)
    assert steps == (
        Run(0, 0, (0, 1)),
        Run(0, 2, (2, 3)),
        Copy(0, 0, 1, problem.cluster.route(0, 1), (0, 1)),
        Copy(0, 2, 3, problem.cluster.route(2, 3), (2, 3)),
    )


def test_nodes_that_cannot_share_the_items_alike_are_left_alone() -> None:
    problem = nodes((3, 5, 4, 2))
    symmetry = device_symmetry(problem)
    assert equal_nodes(problem, 3, symmetry) == ()
    hosted: Cluster = replace(problem.cluster, host=0)
    assert equal_nodes(Problem(problem.graph, hosted, problem.costs), 4, symmetry) == ()
