"""Colocation groups that an order meets one after the other become one, within limits."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.exact.fusion import fusion_row
from heteroplace.coarsen.breakpoints import BreakpointOptions, fuse_segments, task_bytes
from heteroplace.coarsen.coarse import coarsen
from heteroplace.coarsen.joined_groups import join_colocation_groups
from heteroplace.coarsen.levels import usable_devices
from heteroplace.errors import SolverError
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraph
from tests.dags import PAIR, chain_of, task_graphs
from tests.strategies import num_cases
from zoo.graphs.catalogue import exact_instances


def labels(graph: TaskGraph) -> list[str | None]:
    """The colocation group of each task."""
    return [task.together for task in graph.tasks]


def join(graph: TaskGraph, options: BreakpointOptions | None = None) -> TaskGraph:
    """Join the groups of a graph on two equal devices."""
    costs = build_table(graph, PAIR, lambda task, device: Cost.given(1))
    return join_colocation_groups(graph, PAIR, costs, options)


@pytest.mark.costly
@given(task_graphs(max_tasks=12), st.integers(1, 8))
@num_cases(200)
def test_what_shared_a_device_still_does_and_can(graph: TaskGraph, max_tasks: int) -> None:
    costs = build_table(graph, PAIR, lambda task, device: Cost.given(1))
    usable = usable_devices(graph, PAIR, costs)
    assume(all(usable.any(axis=1)))
    options = BreakpointOptions(max_tasks=max_tasks)
    joined = join(graph, options)
    pairs = list(zip(labels(graph), labels(joined), strict=True))
    assert all((before is None) == (after is None) for before, after in pairs)
    after_of = dict(pairs)
    assert all(after_of[before] == after for before, after in pairs)
    assert usable_devices(joined, PAIR, costs).any(axis=1).all()
    coarsen(joined, fuse_segments(joined, PAIR, costs, options).groups)


def test_groups_within_the_window_are_joined() -> None:
    tasks = [Task(name, "op", together=name) for name in "abcd"]
    assert labels(join(chain_of(*tasks), BreakpointOptions(max_tasks=2))) == ["a", "a", "c", "c"]
    assert labels(join(chain_of(*tasks), BreakpointOptions(max_tasks=3))) == ["a", "a", "a", "d"]


def test_windows_of_no_task_are_refused_rather_than_replaced() -> None:
    tasks = [Task(name, "op", together=name) for name in "abcd"]
    assert labels(join(chain_of(*tasks), BreakpointOptions(max_tasks=1))) == list("abcd")
    with pytest.raises(SolverError, match="may have 0 tasks"):
        join(chain_of(*tasks), BreakpointOptions(max_tasks=0))


def test_joined_groups_stay_below_the_limit_of_bytes() -> None:
    tasks = [Task(name, "op", weight_bytes=40, together=name) for name in "abcd"]
    graph = chain_of(*tasks)
    two = 2 * max(task_bytes(graph).tolist())
    options = BreakpointOptions(max_tasks=9, max_bytes=two)
    assert labels(join(graph, options)) == ["a", "a", "c", "c"]


def test_groups_without_a_common_device_are_not_joined() -> None:
    tasks = [
        Task("a", "op", together="a", devices=("gpu0",)),
        Task("b", "op", together="b", devices=("gpu1",)),
        Task("c", "op", together="c"),
    ]
    assert labels(join(chain_of(*tasks), BreakpointOptions(max_tasks=9))) == ["a", "b", "b"]


def test_a_graph_with_one_group_stays_what_it_is() -> None:
    graph = chain_of(Task("a", "op", together="g"), Task("b", "op"), Task("c", "op", together="g"))
    assert join(graph) is graph


@pytest.mark.parametrize("name", ["holography", "inception-v3"])
def test_fusion_shrinks_training_graphs_and_their_communication(name: str) -> None:
    """Celeritas' table 2, as a shape: far fewer nodes, CCR down by 2.9 to 10 times."""
    row = fusion_row(exact_instances()[f"celeritas/{name}"].build())
    assert row["fused_tasks"] < row["tasks"] / 40
    assert row["ccr"] > 2.8 * row["fused_ccr"]
