"""Modules: what falls apart at one channel, and paths of modules at several."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import GraphError, SolverError
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.native.core_graph import Dag
from heteroplace.parts.throughput.decompose.narrow_cuts import (
    Boundary,
    ModulePath,
    edge_connected_modules,
    prefix_modules,
    single_channel_modules,
)
from heteroplace.parts.throughput.native.core_cuts import (
    balanced_prefix_cuts,
    edge_connected_components,
    find_cuts,
)
from tests.dags import WeightedDag, lettered, task_graphs, weighted_dags
from tests.reference.graphs import (
    Edge,
    articulation_points,
    bridges,
    closure,
    least_module_cost,
    parted_by_less_than,
)
from tests.strategies import exact_cases, num_cases

TWO_DIAMONDS = "ab ac bd cd de ef eg fh gh"
TWO_DIAMONDS_SHARING_A_TASK = "ab ac bd cd de df eg fg"
TWO_CHANNELS = "so sp oi pj it jt"


def named(graph: TaskGraph, path: ModulePath) -> str:
    """Modules as "abc|def"."""
    return "|".join("".join(graph.tasks[t].name for t in tasks) for tasks in path.modules)


def test_two_diamonds_are_two_modules_joined_by_their_bridge() -> None:
    graph = lettered(TWO_DIAMONDS)
    path = single_channel_modules(graph, min_tasks=1)
    assert named(graph, path) == "abcd|efgh"
    assert path.boundaries == (Boundary(((3, 4),)),)


def test_articulation_point_runs_before_the_cut_and_is_read_where_it_ran() -> None:
    graph = lettered(TWO_DIAMONDS_SHARING_A_TASK)
    path = single_channel_modules(graph, min_tasks=1)
    assert named(graph, path) == "abcd|efg"
    assert path.boundaries == (Boundary(((3, 3),), split=3),)


def test_end_of_a_bridge_is_not_split() -> None:
    graph = lettered("ab ac bd cd de")
    path = single_channel_modules(graph, min_tasks=1)
    assert named(graph, path) == "abcd|e"
    assert path.boundaries == (Boundary(((3, 4),)),)


def test_several_sources_and_sinks_get_virtual_ones() -> None:
    graph = lettered("ac bc ce cd")
    path = single_channel_modules(graph, min_tasks=1)
    assert named(graph, path) == "abc|de"
    assert path.boundaries == (Boundary(((2, 2),), split=2),)


def test_unconnected_parts_are_one_module() -> None:
    graph = lettered("ab cd")
    assert named(graph, single_channel_modules(graph, min_tasks=1)) == "abcd"


def test_small_modules_are_merged_up_to_the_limits() -> None:
    letters = "abcdefghijklmnopqrst"
    graph = lettered(" ".join(a + b for a, b in pairwise(letters)))
    sizes = [len(tasks) for tasks in single_channel_modules(graph).modules]
    assert sizes == [8, 12]
    capped = [len(tasks) for tasks in single_channel_modules(graph, max_tasks=8).modules]
    assert capped == [8, 8, 4]
    assert len(single_channel_modules(graph, min_tasks=1).modules) == 20
    assert len(single_channel_modules(graph, max_tasks=1).modules) == 20


def test_empty_graph_has_no_modules() -> None:
    empty = TaskGraphBuilder("empty").finalize([])
    for path in (
        single_channel_modules(empty),
        prefix_modules(empty, 1),
        edge_connected_modules(empty, 1),
    ):
        assert path == ModulePath((), ())


def test_one_task_is_one_module() -> None:
    builder = TaskGraphBuilder("one")
    builder.add_task(Task("a", "op"), [])
    graph = builder.finalize([builder.add_tensor("a", num_bytes=1)])
    for path in (
        single_channel_modules(graph),
        prefix_modules(graph, 1),
        edge_connected_modules(graph, 1),
    ):
        assert path == ModulePath(((0,),), ())


def test_two_channels_are_found_by_both_ways() -> None:
    graph = lettered(TWO_CHANNELS, dict.fromkeys("sopijt", 1))
    expected = "sop|ijt"
    by_prefix = prefix_modules(graph, 2, target_tasks=3, min_tasks=3)
    assert named(graph, by_prefix) == expected
    assert by_prefix.boundaries == (Boundary(((1, 3), (2, 4))),)
    assert by_prefix.boundaries[0].channels == ((1, 3), (2, 4))
    by_components = edge_connected_modules(graph, 2, target_tasks=3, min_tasks=3)
    assert by_components == by_prefix


def test_edge_connected_components_of_one_channel_are_the_bridge_modules() -> None:
    graph = lettered(TWO_DIAMONDS)
    assert named(graph, edge_connected_modules(graph, 1)) == "abcd|efgh"


def test_components_that_form_no_path_are_joined() -> None:
    # a, b, c and d are joined by three ways each; e hangs beside them, on a second path a to d.
    graph = lettered("ab ac ad bc bd cd ae ed")
    assert named(graph, edge_connected_modules(graph, 2)) == "abced"


def test_modules_of_a_graph_whose_own_order_is_bad_use_another_order() -> None:
    # Two chains side by side, given breadth-first: two edges cross every cut of that order.
    graph = lettered("sa sb ac bd ce df et ft", dict.fromkeys("sabcdeft", 1))
    assert len(prefix_modules(graph, 2, target_tasks=4, min_tasks=1).modules) == 2
    assert len(prefix_modules(graph, 1, target_tasks=4, min_tasks=1).modules) == 1


@given(weighted_dags())
@num_cases(200)
def test_cuts_equal_counting_components(case: WeightedDag) -> None:
    dag, edges = case.dag(), list(case.edges)
    cuts = find_cuts(dag)
    assert np.flatnonzero(cuts.is_articulation).tolist() == articulation_points(
        case.num_nodes, edges
    )
    found = [(int(dag.src[e]), int(dag.dst[e])) for e in np.flatnonzero(cuts.is_bridge)]
    expected = bridges(case.num_nodes, edges)
    assert sorted(found) == sorted(expected)
    kept = [edge for edge in edges if edge not in expected]
    reaches = closure(case.num_nodes, [*kept, *((dst, src) for src, dst in kept)])
    for a in range(case.num_nodes):
        for b in range(a):
            assert (cuts.component[a] == cuts.component[b]) == reaches[a][b]


@given(weighted_dags(max_nodes=6), st.integers(1, 5))
@num_cases(200)
def test_edge_connected_components_equal_trying_every_cut(case: WeightedDag, k: int) -> None:
    component = edge_connected_components(case.dag(), k).tolist()
    parted = parted_by_less_than(case.num_nodes, case.edges, k)
    for a in range(case.num_nodes):
        for b in range(case.num_nodes):
            assert (component[a] != component[b]) == parted[a][b]
    assert list(dict.fromkeys(component)) == list(range(len(set(component))))


@given(st.integers(1, 6), st.integers(0, 2**36 - 1))
@num_cases(200)
def test_strong_components_equal_the_closure(num_nodes: int, bits: int) -> None:
    edges = [(a, b) for a in range(num_nodes) for b in range(num_nodes) if bits >> (6 * a + b) & 1]
    dag = Dag.of_edges(num_nodes, [a for a, _ in edges], [b for _, b in edges])
    component = dag.strong_components().tolist()
    reaches = closure(num_nodes, edges)
    for a in range(num_nodes):
        for b in range(num_nodes):
            assert (component[a] == component[b]) == (a == b or (reaches[a][b] and reaches[b][a]))
            assert component[a] <= component[b] or not reaches[a][b]


@given(task_graphs(max_tasks=10))
@exact_cases(200)
def test_single_channel_modules_are_a_path_of_all_that_falls_apart(graph: TaskGraph) -> None:
    path = single_channel_modules(graph, min_tasks=1)
    _check_path(graph, path)
    assert all(len(boundary.channels) == 1 for boundary in path.boundaries)
    num_nodes, edges = _single_ended(graph)
    at_bridges = bridges(num_nodes, edges)
    ends = {node for edge in at_bridges for node in edge}
    splits = [node for node in articulation_points(num_nodes, edges) if node not in ends]
    assert len(path.boundaries) == len(at_bridges) + len(splits)
    assert sum(boundary.split is not None for boundary in path.boundaries) == len(splits)


@pytest.mark.costly
@given(task_graphs(max_tasks=10), st.integers(1, 6), st.integers(1, 12))
@num_cases(200)
def test_merged_modules_are_a_path_within_the_limits(
    graph: TaskGraph, min_tasks: int, max_tasks: int
) -> None:
    whole = single_channel_modules(graph, min_tasks=1)
    path = single_channel_modules(graph, min_tasks, max_tasks)
    _check_path(graph, path)
    assert set(path.boundaries) <= set(whole.boundaries)
    for tasks in path.modules:
        assert len(tasks) <= max_tasks or tasks in whole.modules
    for before, after in pairwise(path.modules):
        assert len(before) >= min_tasks or len(before) + _first_part(whole, after) > max_tasks


@pytest.mark.costly
@given(weighted_dags(), st.integers(0, 3), st.integers(1, 5), st.integers(1, 4))
@num_cases(200)
def test_prefix_cuts_equal_exhaustive_search(
    case: WeightedDag, max_channels: int, target_nodes: int, min_nodes: int
) -> None:
    if case.num_nodes == 0:
        assert balanced_prefix_cuts(case.dag(), [], 1, 1, 1) == ([], 0)
        return
    order = case.dag().depth_first_order().tolist()
    starts, cost = balanced_prefix_cuts(case.dag(), order, max_channels, target_nodes, min_nodes)
    expected = least_module_cost(order, case.edges, max_channels, target_nodes, min_nodes)
    assert cost == expected
    sizes = [end - begin for begin, end in pairwise([*starts, len(order)])]
    assert cost == sum((size - target_nodes) ** 2 for size in sizes)


@pytest.mark.costly
@given(task_graphs(max_tasks=10), st.integers(1, 3))
@num_cases(200)
def test_prefix_modules_are_a_path_with_few_channels(graph: TaskGraph, channels: int) -> None:
    path = prefix_modules(graph, channels, target_tasks=3, min_tasks=1)
    _check_path(graph, path)
    assert all(len(boundary.channels) <= channels for boundary in path.boundaries)


@pytest.mark.costly
@given(task_graphs(max_tasks=10), st.integers(1, 3))
@num_cases(200)
def test_edge_connected_modules_are_a_path_with_few_channels(
    graph: TaskGraph, channels: int
) -> None:
    path = edge_connected_modules(graph, channels)
    _check_path(graph, path)
    assert all(len(boundary.channels) <= channels for boundary in path.boundaries)


def test_parameters_below_one_are_refused() -> None:
    graph = lettered("ab")
    with pytest.raises(SolverError, match="min_tasks is 0; expected at least 1"):
        single_channel_modules(graph, min_tasks=0)
    with pytest.raises(SolverError, match="num_channels is 0"):
        prefix_modules(graph, 0)
    with pytest.raises(SolverError, match="target_tasks is -1"):
        edge_connected_modules(graph, 1, target_tasks=-1)


def test_components_joined_by_no_edge_are_refused() -> None:
    with pytest.raises(GraphError, match="joined by 0 edges; expected at least 1"):
        edge_connected_components(Dag.of_edges(2, [0], [1]), 0)


def test_rules_that_do_not_fit_the_graph_are_refused() -> None:
    dag = Dag.of_edges(2, [0], [1])
    with pytest.raises(GraphError, match="do not fit a graph of 2 nodes"):
        balanced_prefix_cuts(dag, [0, 1], 1, 1, 1, np.ones(3, dtype=bool))


def _check_path(graph: TaskGraph, path: ModulePath) -> None:
    """All tasks once; every edge inside a module or over the next boundary, as a channel."""
    assert sorted(task for tasks in path.modules for task in tasks) == list(range(len(graph.tasks)))
    assert all(path.modules)
    assert len(path.boundaries) == len(path.modules) - 1
    module_of = {task: index for index, tasks in enumerate(path.modules) for task in tasks}
    for dst, before in enumerate(graph.predecessors):
        for src in before:
            if module_of[src] == module_of[dst]:
                continue
            assert module_of[dst] == module_of[src] + 1
            boundary = path.boundaries[module_of[src]]
            if boundary.split is None:
                assert (src, dst) in boundary.channels
            else:
                assert boundary.channels == ((src, src),)


def _single_ended(graph: TaskGraph) -> tuple[int, list[Edge]]:
    """The graph with a virtual source and sink where it has several."""
    edges = [(src, dst) for dst, before in enumerate(graph.predecessors) for src in before]
    size = len(graph.tasks)
    sources = [task for task in range(size) if not graph.predecessors[task]]
    sinks = [task for task in range(size) if not graph.successors[task]]
    if len(sources) != 1:
        edges.extend((size, task) for task in sources)
        size += 1
    if len(sinks) != 1:
        edges.extend((task, size) for task in sinks)
        size += 1
    return size, edges


def _first_part(whole: ModulePath, merged: tuple[int, ...]) -> int:
    """Size of the first of the modules that `merged` was made of."""
    return next(len(tasks) for tasks in whole.modules if set(tasks) <= set(merged))
