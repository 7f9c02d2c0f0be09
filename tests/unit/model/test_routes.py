"""`Cluster.route` against all paths of small clusters, and on clusters of many devices."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given

from heteroplace.errors import ClusterError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from tests.corpus import corpus
from tests.strategies import num_cases


def cluster_of(num_memories: int, links: list[tuple[int, int, int]]) -> Cluster:
    """Links of (source, destination, width)."""
    return Cluster(
        "wires",
        tuple(Memory(f"m{i}", 1) for i in range(num_memories)),
        tuple(Device(f"d{i}", "cuda", "", i, i) for i in range(num_memories)),
        tuple(Link(f"l{i}", *ends, 0, f"l{i}") for i, ends in enumerate(links)),
    )


@corpus
def wired(random: Random) -> Cluster:
    """2 to 6 memories, few widths, several links between two and memories that nothing reaches."""
    num_memories = random.randint(2, 6)
    links = []
    for _ in range(random.randint(0, 14)):
        src, dst = random.sample(range(num_memories), 2)
        links.append((src, dst, random.randint(1, 4)))
    return cluster_of(num_memories, links)


def all_paths(cluster: Cluster, src: int, dst: int) -> list[tuple[int, ...]]:
    """Every path from one memory to another that visits none twice."""
    paths = []

    def extend(path: tuple[int, ...], visited: tuple[int, ...]) -> None:
        if visited[-1] == dst:
            paths.append(path)
            return
        for index, link in enumerate(cluster.links):
            if link.src == visited[-1] and link.dst not in visited:
                extend((*path, index), (*visited, link.dst))

    extend((), (src,))
    return paths


@pytest.mark.costly
@given(wired())
@num_cases(200)
def test_a_route_is_the_best_of_all_paths(cluster: Cluster) -> None:
    def value(path: tuple[int, ...]) -> tuple[bool, int, int, tuple[int, ...]]:
        width = min(cluster.links[link].bytes_per_second for link in path)
        return (len(path) > 1, -width, len(path), path)

    for src in range(len(cluster.memories)):
        for dst in range(len(cluster.memories)):
            paths = all_paths(cluster, src, dst)
            assert cluster.is_reachable(src, dst) == bool(paths)
            if src == dst:
                assert cluster.route(src, dst) == ()
            elif paths:
                assert cluster.route(src, dst) == min(paths, key=value)
            else:
                with pytest.raises(ClusterError, match=f"'m{src}' to 'm{dst}'"):
                    cluster.route(src, dst)


def test_of_equally_wide_routes_the_shortest_is_taken() -> None:
    # To memory 2 the way over 1 is wider; behind the link to 3 that gains nothing.
    cluster = cluster_of(4, [(0, 1, 9), (1, 2, 9), (0, 2, 5), (2, 3, 5)])
    assert cluster.route(0, 3) == (2, 3)


def test_of_routes_with_equal_hops_the_lowest_links_are_taken() -> None:
    cluster = cluster_of(4, [(2, 3, 5), (1, 3, 5), (0, 2, 5), (0, 1, 5), (0, 1, 7)])
    assert cluster.route(0, 3) == (2, 0)


def test_routes_through_a_switch_are_those_over_it() -> None:
    count, widths = 300, Random(0)
    links = [(0, i, widths.randint(1, 10**9)) for i in range(1, count)]
    links += [(dst, src, width) for src, dst, width in links]
    cluster = cluster_of(count, links)
    assert all(
        cluster.route(src, dst) == (count - 2 + src, dst - 1)
        for src in range(1, count)
        for dst in range(1, count)
        if src != dst
    )
