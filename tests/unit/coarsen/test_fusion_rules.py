"""Moirai's coarsening by fusion rules."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given

from heteroplace.coarsen.fusion_rules import MOIRAI_RULES, FusionRules, fuse_by_rules
from heteroplace.errors import SolverError
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from tests.dags import task_graphs
from tests.reference.graphs import is_acyclic
from tests.strategies import num_cases


def graph_of(text: str, sizes: dict[str, int] | None = None, **extra: Task) -> TaskGraph:
    """Edges "conv1>bn1"; the op type is the name without digits; one tensor per task."""
    pairs = [tuple(edge.split(">")) for edge in text.split()]
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    builder = TaskGraphBuilder("rules")
    for name in names:
        reads = [f"{src}.0" for src, dst in pairs if dst == name]
        builder.add_task(extra.get(name, Task(name, name.rstrip("0123456789"))), reads)
        builder.add_tensor(name, num_bytes=(sizes or {}).get(name, 1))
    sources = {src for src, _ in pairs}
    return builder.finalize([f"{name}.0" for name in names if name not in sources])


def fused(graph: TaskGraph, rules: FusionRules = MOIRAI_RULES) -> set[str]:
    """Names of the tasks of each group."""
    groups = fuse_by_rules(graph, rules)
    return {" ".join(graph.tasks[task].name for task in group) for group in groups}


def test_worked_example_has_six_groups() -> None:
    graph = graph_of(
        "add0>relu0 relu0>add1 add1>relu1 relu1>add2 add2>relu2 "
        "add0>conv1 conv1>bn1 bn1>conv2 conv2>bn2 bn2>add2"
    )
    expected = {"add0", "relu0", "add1", "relu1", "conv1 bn1", "conv2 bn2 add2 relu2"}
    assert fused(graph) == expected


@pytest.mark.costly
@given(task_graphs(max_tasks=12))
@num_cases(300)
def test_groups_are_a_partition_into_whole_rules_without_a_cycle(graph: TaskGraph) -> None:
    groups = fuse_by_rules(graph, MOIRAI_RULES)
    assert sorted(task for group in groups for task in group) == list(range(len(graph.tasks)))
    for group in groups:
        types = tuple(graph.tasks[task].op for task in group)
        assert len(group) == 1 or types in MOIRAI_RULES.complete
    group_of = {task: index for index, group in enumerate(groups) for task in group}
    edges = {
        (group_of[src], group_of[dst])
        for dst, before in enumerate(graph.predecessors)
        for src in before
        if group_of[src] != group_of[dst]
    }
    assert is_acyclic(len(groups), edges)


def test_direct_connection_is_fused() -> None:
    assert fused(graph_of("conv>bn bn>relu")) == {"conv bn relu"}


def test_multi_inputs_connection_is_fused_with_one_producer() -> None:
    graph = graph_of("conv>bn bn>add mm>add add>relu")
    assert fused(graph) == {"conv bn add relu", "mm"}


def test_multi_outputs_connection_is_refused() -> None:
    assert fused(graph_of("conv>bn conv>relu")) == {"conv", "bn", "relu"}


def test_two_tensors_to_one_consumer_are_one_connection() -> None:
    builder = TaskGraphBuilder("two")
    builder.add_task(Task("conv", "conv"), [])
    reads = [builder.add_tensor("conv", num_bytes=1) for _ in range(2)]
    builder.add_task(Task("bn", "bn"), reads)
    assert fused(builder.finalize([builder.add_tensor("bn", num_bytes=1)])) == {"conv bn"}


def test_consumers_in_one_group_are_one_connection() -> None:
    graph = graph_of("conv>bn conv>add bn>add add>relu")
    assert fused(graph) == {"conv bn add relu"}


def test_task_that_feeds_only_the_middle_of_a_group_does_not_lead_it() -> None:
    # Without this, "conv bn" would be read off a chain that is not there.
    rules = FusionRules((("add", "bn"), ("conv", "add", "bn")))
    graph = graph_of("add>bn conv>bn")
    assert fused(graph, rules) == {"add bn", "conv"}


def test_partial_match_is_released() -> None:
    assert fused(graph_of("bn>add add>relu")) == {"bn", "add", "relu"}


def test_released_match_keeps_the_whole_rules_inside() -> None:
    assert fused(graph_of("conv>bn bn>add")) == {"conv bn", "add"}


def test_join_takes_the_producer_that_completes_a_rule() -> None:
    for text in ("conv>bn1 bn1>add bn2>add add>relu", "bn2>add conv>bn1 bn1>add add>relu"):
        assert fused(graph_of(text)) == {"conv bn1 add relu", "bn2"}


def test_join_takes_the_longer_rule() -> None:
    rules = FusionRules((("a", "x"), ("c", "b", "x")))
    assert fused(graph_of("a>x c>b b>x"), rules) == {"a", "c b x"}


def test_join_takes_the_larger_tensor_among_equal_rules() -> None:
    graph = graph_of("conv1>bn1 bn1>add conv2>bn2 bn2>add add>relu", {"bn2": 9})
    assert fused(graph) == {"conv1 bn1", "conv2 bn2 add relu"}


def test_join_takes_the_lower_task_among_equals() -> None:
    graph = graph_of("conv1>bn1 bn1>add conv2>bn2 bn2>add add>relu")
    assert fused(graph) == {"conv1 bn1 add relu", "conv2 bn2"}


def test_returned_tensor_is_not_hidden_in_a_group() -> None:
    builder = TaskGraphBuilder("returned")
    builder.add_task(Task("conv", "conv"), [])
    made = builder.add_tensor("conv", num_bytes=1)
    builder.add_task(Task("bn", "bn"), [made])
    graph = builder.finalize([made, builder.add_tensor("bn", num_bytes=1)])
    assert fused(graph) == {"conv", "bn"}


def test_tasks_that_cannot_share_a_device_are_not_fused() -> None:
    pinned = {
        "conv": Task("conv", "conv", devices=("gpu0",)),
        "bn": Task("bn", "bn", devices=("gpu1",)),
    }
    assert fused(graph_of("conv>bn", **pinned)) == {"conv", "bn"}
    labelled = {
        "conv": Task("conv", "conv", together="g"),
        "bn": Task("bn", "bn", together="h"),
    }
    assert fused(graph_of("conv>bn", **labelled)) == {"conv", "bn"}


@pytest.mark.costly
def test_chain_of_5000_tasks_needs_no_recursion() -> None:
    names = [f"{op}{index}" for index in range(2500) for op in ("conv", "bn")]
    graph = graph_of(" ".join(f"{a}>{b}" for a, b in pairwise(names)))
    assert len(fuse_by_rules(graph, MOIRAI_RULES)) == 2500


def test_rule_of_one_op_is_refused() -> None:
    with pytest.raises(SolverError, match="fewer than 2 op types"):
        FusionRules((("conv",),))
