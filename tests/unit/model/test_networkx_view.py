"""Task graphs as networkx graphs and back."""

from __future__ import annotations

from typing import Any

import networkx
import pytest
from hypothesis import given

from heteroplace.errors import GraphError
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Plan
from tests.explicit_plans import explicit_plans
from tests.strategies import Instance, exact_cases, instances


@exact_cases(100)
@given(instances())
def test_there_and_back(case: Instance) -> None:
    view = case.graph.to_networkx()
    assert TaskGraph.from_networkx(view) == case.graph
    assert networkx.is_directed_acyclic_graph(view)
    assert TaskGraph.from_networkx(view.copy()).digest() == case.graph.digest()


@exact_cases(50)
@given(explicit_plans())
def test_a_training_step_goes_there_and_back(case: tuple[Instance, Plan]) -> None:
    graph = case[0].graph
    assert TaskGraph.from_networkx(graph.to_networkx()) == graph


@pytest.mark.parametrize(
    ("task", "updates", "message"),
    [
        ({"adds": 1}, (), "adds of node 'a' is 1; expected True or False"),
        ({"weights": [("w", -1)]}, (), "a size in weights of node 'a' is -1; expected a whole"),
        ({"weights": "w"}, (), "weights of node 'a' is 'w'; expected a list"),
        ({"weights": ["w,x"]}, (), "weights of node 'a' is 'w,x'; expected a list"),
        ({}, [("x",)], "the graph attribute 'updates' has .*; expected pairs"),
        ({}, [("x", "t")], "update x -> t: 'x' does not exist"),
    ],
)
def test_what_is_shared_is_checked(task: dict[str, object], updates: object, message: str) -> None:
    view = changed()
    view.nodes["a"].update(task)
    view.graph["updates"] = updates
    with pytest.raises(GraphError, match=message):
        TaskGraph.from_networkx(view)


def test_two_outputs_pins_and_groups_survive() -> None:
    builder = TaskGraphBuilder("net")
    x = builder.add_input("x", (1, 4), "float32")
    split = Task("s", "split", ("a:b",), 3, 5, 7, ("cpu.0",), "stay")
    builder.add_task(split, [x])
    left, right = builder.add_tensor("s", (2,), "int8"), builder.add_tensor("s", (2,), "int8")
    unread = builder.add_tensor("s", num_bytes=9)
    builder.add_task(Task("b", "add"), [left, right])
    graph = builder.finalize([unread, builder.add_tensor("b", num_bytes=2), unread])
    assert TaskGraph.from_networkx(graph.to_networkx()) == graph
    assert graph.to_networkx().nodes["s"]["devices"] == ("cpu.0",)


def test_a_plain_graph_of_names_and_sizes_is_enough() -> None:
    view = networkx.DiGraph(name="plain")
    view.add_edge("a", "b", bytes=8)
    view.add_edge("a", "c", shape=(2, 3), dtype="float16")
    view.nodes["c"]["op"] = "conv"
    view.graph["unread"] = [{"name": "y", "producer": "c", "bytes": 4}]
    graph = TaskGraph.from_networkx(view)
    assert [(task.name, task.op) for task in graph.tasks] == [("a", ""), ("b", ""), ("c", "conv")]
    assert [(t.name, t.bytes) for t in graph.tensors] == [("a->b", 8), ("a->c", 12), ("y", 4)]
    assert [graph.tensors[tensor].name for tensor in graph.outputs] == ["y"]


def changed(**edge: object) -> Any:
    view = networkx.MultiDiGraph()
    view.add_edge("a", "b", **{"tensor": "t", "bytes": 1} | edge)
    view.add_edge("a", "c", tensor="t", bytes=1)
    return view


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (networkx.Graph([("a", "b")]), "expected a directed graph of networkx, got Graph"),
        (3, "expected a directed graph of networkx, got int"),
        (networkx.DiGraph([("a", "b")]), "the edge from 'a' to 'b' says no size"),
        (networkx.DiGraph([(1, 2, {"bytes": 1})]), "a node is 1; expected a text"),
        (changed(bytes=2), "tensor 't' is described in two ways"),
        (changed(bytes=-1), "bytes of the edge from 'a' to 'b' is -1; expected a whole number"),
        (changed(bytes=True), "is True; expected a whole number"),
        (changed(index=2), "described in two ways"),
        (changed(shape=[2.9, 4]), "an extent of the edge from 'a' to 'b' is 2.9; expected a whole"),
        (changed(shape=["n", 4]), "an extent of the edge from 'a' to 'b' is 'n'; expected a whole"),
        (changed(colour=2), "the edge from 'a' to 'b' has 'colour'"),
        (changed(shape="12"), "shape of the edge from 'a' to 'b' is '12'; expected a list"),
        (networkx.DiGraph([("a", "b", {"bytes": 1}), ("b", "a", {"bytes": 1})]), "has a cycle"),
        (networkx.DiGraph([("a", "b", {"bytes": 1, "index": 1})]), "have the indices [1]"),
        (networkx.DiGraph(outputs=["y"]), "output 'y' does not exist"),
        (
            networkx.DiGraph(inputs=[{"name": "x", "bytes": 1, "consumers": ["a"]}]),
            "names 'a', and",
        ),
        (networkx.DiGraph(tensors=["x"]), "'tensors' does not name the tensors"),
    ],
)
def test_what_is_no_task_graph_is_refused(view: Any, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        TaskGraph.from_networkx(view)
    assert message in str(caught.value)


def test_a_node_with_a_strange_attribute_is_refused() -> None:
    view = networkx.DiGraph()
    view.add_node("a", cost=3)
    with pytest.raises(GraphError, match="node 'a' has attributes cost; a task has: op, members"):
        TaskGraph.from_networkx(view)
