"""What is shared in a graph: faults that the builder names, and digests that stay as they were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heteroplace.errors import GraphError
from heteroplace.model.collectives import collective_op
from heteroplace.model.digests import first_difference
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from tests.instances import diamond
from tests.unit.model.test_check_explicit import step_graph


def build(
    *tasks: Task, shared: bool = False, updates: tuple[tuple[str, str], ...] = ()
) -> TaskGraph:
    """Tasks in a row, each of which reads what the one before makes."""
    builder = TaskGraphBuilder("row")
    read = builder.add_input("x", (4,), "int8", shared=shared)
    for task in tasks:
        builder.add_task(task, [read])
        read = builder.add_tensor(task.name, (4,), "int8", shared=shared)
    for state, tensor in updates:
        builder.add_update(state, tensor)
    return builder.finalize([read])


@pytest.mark.parametrize(
    ("task", "shared", "message"),
    [
        (Task("a", "op", adds=True), False, "task 'a' adds, and none of what it makes is shared"),
        (Task("a", "op", together="g"), True, "task 'a' is in the colocation group 'g', and all"),
        (Task("a", collective_op("all_reduce")), False, "'a' reads one tensor, which each device"),
        (Task("a", collective_op("broadcast"), adds=True), True, "adds, and broadcast is no sum"),
        (Task("a", "op", weights=(("t", 1), ("t", 1))), False, "'a' names a weight twice: t, t"),
        (Task("a", "op", weights=(("t", -1),)), False, "weight 't' has -1 bytes; expected >= 0"),
    ],
)
def test_what_a_task_may_not_share_is_named(task: Task, shared: bool, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        build(task, shared=shared)


def test_tasks_agree_on_the_weights_they_share() -> None:
    first = Task("a", "op", weights=(("table", 8),))
    build(first, replace(first, name="b"))
    with pytest.raises(GraphError, match="task 'b': weight 'table' has 9 bytes, and 8 for an ear"):
        build(first, Task("b", "op", weights=(("table", 9),)))


def collective(kind: str, reads: list[bool], makes: list[bool]) -> TaskGraph:
    builder = TaskGraphBuilder("lanes")
    read = [
        builder.add_input(f"x{number}", (4,), "int8", shared=shared)
        for number, shared in enumerate(reads)
    ]
    builder.add_task(Task("c", collective_op(kind)), read)
    return builder.finalize([builder.add_tensor("c", (4,), "int8", shared=made) for made in makes])


@pytest.mark.parametrize(
    ("kind", "reads", "makes", "message"),
    [
        ("all_reduce", [True], [False], "reads and makes shared tensors and others; expected all"),
        ("all_reduce", [False, True], [False], "reads and makes shared tensors and others"),
        ("all_reduce", [False, False], [False, False], "makes 2 tensors; all_reduce makes one"),
        ("broadcast", [False, False], [False], "reads 2 tensors; broadcast reads one"),
        ("scatter", [], [False], "collective 'c' reads 0 tensors and makes 1"),
    ],
)
def test_a_collective_that_cannot_be_is_named(
    kind: str, reads: list[bool], makes: list[bool], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        collective(kind, reads, makes)


@pytest.mark.parametrize(
    ("tasks", "shared", "updates", "message"),
    [
        ((Task("a", "op"),), True, (("a.0", "x"),), "expected a model input, and a tensor that a"),
        ((Task("a", "op"),), False, (("x", "a.0"),), "expected both to be shared"),
        ((Task("a", "op", adds=True),), True, (("x", "a.0"),), "task 'a' adds to what it makes"),
        ((Task("a", "op"),), True, (("x", "a.0"), ("x", "a.0")), "one of them is in an earlier"),
        ((Task("a", "op"),), True, (("x", "b.0"),), "update x -> b.0: 'b.0' does not exist"),
        ((Task("a", "op"),), True, (("x", "a.0"),), "'a.0' is an output too; state is read where"),
    ],
)
def test_an_update_that_cannot_be_is_named(
    tasks: tuple[Task, ...], shared: bool, updates: tuple[tuple[str, str], ...], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        build(*tasks, shared=shared, updates=updates)


def test_an_update_is_of_the_type_of_the_state() -> None:
    builder = TaskGraphBuilder("types")
    state = builder.add_input("w", (4,), "int8", shared=True)
    builder.add_task(Task("a", "op"), [state])
    builder.add_update(state, builder.add_tensor("a", (2,), "int16", shared=True))
    with pytest.raises(GraphError, match=r"expected equal types, got int8\[4\] of 4 bytes and int"):
        builder.finalize([])


def test_graphs_that_share_nothing_have_the_digests_that_they_had() -> None:
    graph = diamond().graph
    assert (graph.digest(), graph.structure_digest) == ("be661257cf861954", "1715db5090f8bb88")
    builder = TaskGraphBuilder("pinned")
    read = builder.add_input("x", (1, 4), "float32")
    task = Task("a", "nn.dense", ("call",), 3, 5, 7, ("cpu.0",), "stay")
    builder.add_task(task, [read])
    graph = builder.finalize([builder.add_tensor("a", (2,), "int8", name="\ud800")])
    assert (graph.digest(), graph.structure_digest) == ("35c43e0f9798cc67", "c93f4b4c5749ad06")


@pytest.mark.parametrize("what", ["adds", "weights", "shared", "updates"])
def test_digests_tell_what_is_shared(what: str) -> None:
    graph = step_graph()
    tasks, tensors, updates = list(graph.tasks), list(graph.tensors), graph.updates
    if what == "adds":
        tasks[1] = replace(tasks[1], adds=False)
    elif what == "weights":
        tasks[0] = replace(tasks[0], weights=(("table", 1),))
    elif what == "shared":
        tensors[0] = replace(tensors[0], shared=True)
    else:
        updates = ()
    other = replace(graph, tasks=tuple(tasks), tensors=tuple(tensors), updates=updates)
    assert other.digest() != graph.digest()
    assert other.structure_digest != graph.structure_digest
    assert first_difference(graph, other)
