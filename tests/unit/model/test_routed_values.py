"""Routers, branches and routed buffers of task graphs: a mutant for each rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from heteroplace.errors import GraphError
from heteroplace.model.collectives import collective_op
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder, Tensor
from heteroplace.model.routed.routed_values import routed_value_faults
from tests.routed_plans import layer_graph

LAYER = layer_graph(capacities=((1, 6), (6,)))
NAMES = [task.name for task in LAYER.tasks]


def with_router(**changes: object) -> TaskGraph:
    return replace(LAYER, routers=(replace(LAYER.routers[0], **changes),))  # type: ignore[arg-type]


def with_task(name: str, **changes: object) -> TaskGraph:
    change: Callable[[Task], Task] = lambda task: replace(task, **changes)  # type: ignore[arg-type]  # noqa: E731
    tasks = tuple(change(task) if task.name == name else task for task in LAYER.tasks)
    return replace(LAYER, tasks=tasks)


def with_tensor(name: str, **changes: object) -> TaskGraph:
    change: Callable[[Tensor], Tensor] = lambda one: replace(one, **changes)  # type: ignore[arg-type]  # noqa: E731
    return replace(
        LAYER, tensors=tuple(change(one) if one.name == name else one for one in LAYER.tensors)
    )


def readers(name: str, *tasks: str) -> TaskGraph:
    """A tensor read by these tasks."""
    return with_tensor(name, consumers=tuple(sorted(NAMES.index(task) for task in tasks)))


def id_of(tensor: str) -> int:
    return [one.name for one in LAYER.tensors].index(tensor)


MUTANTS = [
    (replace(LAYER, routers=LAYER.routers * 2), "an earlier router is called so too"),
    (with_router(capacities=()), "it has no branches"),
    (with_router(capacities=((2, 1), (6,))), "branch 0 has capacities (2, 1)"),
    (with_router(num_cells=1), "for one cell expected (1,) of each branch"),
    (with_router(num_cells=0), "num_cells is 0; expected at least 1"),
    (with_router(top_k=3), "top_k is 3; expected at least 1 and at most 2"),
    (with_router(quantum=0), "quantum is 0"),
    (with_router(overflow="wait"), "overflow is 'wait'"),
    (with_router(parent=("r", 1)), "its parent is branch 1 of 'r', and its task 'r.route'"),
    (with_router(loads=id_of("x")), "its loads 'x' are a model input"),
    (with_tensor("r.loads", dtype="float32"), "expected int32[2], one for each branch"),
    (with_tensor("r.loads", buffer="r.in"), "are shared, or in a routed buffer"),
    (with_task("r.0.0", branch=("q", 0)), "in a branch of router 'q'; there are: r"),
    (with_task("r.0.0", branch=("r", 2)), "in branch 2 of router 'r', which has branches 0 to 1"),
    (with_task("r.0.0", op=collective_op("all_reduce")), "collective 'r.0.0' is in a branch"),
    (with_tensor("r.0.0.0", shared=True), "'r.0.0' is in a branch and makes a shared tensor"),
    (
        readers("r.loads", "r.0.1", "r.1.0", "r.1.1", "r.join"),
        "task 'r.0.0' is in a branch of router 'r' and does not read its loads 'r.loads'",
    ),
    (with_tensor("r.x.0", buffer="q"), "is in buffer 'q'; there are: r.in, r.mid, r.out"),
    (with_tensor("x", buffer="r.in"), "'x' is in a routed buffer, and a model input or shared"),
    (readers("r.x.0", "r.0.0", "r.1.0"), "expected rows of one branch"),
    (replace(LAYER, outputs=(id_of("r.x.0"),)), "and no output of the model"),
    (with_tensor("r.x.0", bytes=47), "expected those of 6 rows, one for each cell"),
    (replace(LAYER, outputs=(id_of("r.0.1.0"),)), "of branch 0 of router 'r' is an output"),
    (readers("r.0.0.0", "r.0.1", "r.1.1"), "task 'r.1.1' of another branch reads tensor"),
    (
        readers("r.loads", "r.0.0", "r.0.1", "r.1.0", "r.1.1"),
        "task 'r.join' reads tensor 'r.0.1.0' of branch 0 of router 'r' and not its loads",
    ),
]


@pytest.mark.parametrize(("graph", "fault"), MUTANTS, ids=[fault[:40] for _, fault in MUTANTS])
def test_each_rule_refuses_its_mutant(graph: TaskGraph, fault: str) -> None:
    assert not routed_value_faults(LAYER)
    assert any(fault in found for found in routed_value_faults(graph)), routed_value_faults(graph)


def test_the_builder_names_what_does_not_exist() -> None:
    builder = TaskGraphBuilder("routed")
    builder.add_input("x", (4,), "int8")
    builder.add_router(LAYER.routers[0], "loads")
    builder.add_buffer("rows", -1)
    builder.add_buffer("rows", 1)
    with pytest.raises(GraphError) as fault:
        builder.finalize([])
    for what in ("its loads 'loads' do not exist", "-1 bytes", "'rows' is used twice"):
        assert what in str(fault.value)
    builder = TaskGraphBuilder("routed")
    x = builder.add_input("x", (4,), "int8")
    builder.add_task(Task("a", "relu", branch=("r", 0)), [x])
    builder.add_tensor("a", (4,), "int8")
    with pytest.raises(GraphError, match="in a branch of router 'r'; there are: none"):
        builder.finalize([])
