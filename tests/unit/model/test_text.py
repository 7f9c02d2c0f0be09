"""Text forms of graphs and plans: round trips, golden text, errors that name the line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import GraphError, PlanError
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.model.text import parse_graph, parse_plan, print_graph, print_plan
from tests.strategies import Instance, graphs, instances_with_plan, num_cases

AWKWARD = st.text(max_size=6)


@given(graphs(max_tasks=8))
@num_cases(60)
def test_graph_survives_print_and_parse(graph) -> None:  # type: ignore[no-untyped-def]
    assert parse_graph(print_graph(graph)) == graph


@given(instances_with_plan(max_items=3, has_modes=True), st.text(max_size=20), st.text(max_size=20))
@num_cases(100)
def test_plan_survives_print_and_parse(
    case: tuple[Instance, Plan], origin: str, reason: str
) -> None:
    instance, plan = case
    explained = replace(plan, origin=origin, reasons=(reason,) * len(instance.graph.tasks))
    text = print_plan(instance.graph, instance.cluster, explained)
    assert parse_plan(text, instance.graph, instance.cluster) == explained


@given(st.lists(AWKWARD, min_size=1, max_size=3, unique=True), AWKWARD)
@num_cases(100)
def test_graph_with_awkward_names_survives(names: list[str], label: str) -> None:
    builder = TaskGraphBuilder(label)
    read = builder.add_input(label + "!", (1,), "float32")
    for name in names:
        devices = tuple(names) if len(name) % 2 else ()
        builder.add_task(Task(name, label, (label, name), 1, 2, 3, devices, label), [read])
        read = builder.add_tensor(name, (2, 3), "float16", name=f"{name},out")
    graph = builder.finalize([read, read])
    assert parse_graph(print_graph(graph)) == graph


def test_golden_text_of_the_diamond(diamond: Instance) -> None:
    steps = (Run(0, 0), Copy(0, 0, 1, diamond.cluster.route(0, 1)), Run(2, 1))
    plan = Plan("0f", "1e", steps, "by hand")
    assert print_graph(diamond.graph) == (
        "graph worked\n"
        "task a op reads ()\n"
        'tensor a.0 = a 0 "" [] 10\n'
        "task b op reads a.0\n"
        'tensor b.0 = b 0 "" [] 10\n'
        "task c op reads a.0\n"
        'tensor c.0 = c 0 "" [] 10\n'
        "task d op reads b.0,c.0\n"
        'tensor d.0 = d 0 "" [] 10\n'
        "outputs d.0\n"
    )
    assert print_plan(diamond.graph, diamond.cluster, plan) == (
        "plan worked on gpus\n"
        "digests 0f 1e\n"
        'origin "by hand"\n'
        "run a @ gpu0\n"
        "copy a.0 m0 => m1 via 0-1\n"
        "run c @ gpu1\n"
    )


def test_golden_text_of_two_items(diamond: Instance) -> None:
    steps = (Run(0, 0, (0, 1)), Copy(0, 0, 1, (0,), (1,)), Run(2, 1, (1,)), Run(2, 0))
    plan = Plan("0f", "1e", steps, "by hand", items=2)
    text = (
        "plan worked on gpus items 2\n"
        "digests 0f 1e\n"
        'origin "by hand"\n'
        "run a @ gpu0 items 0,1\n"
        "copy a.0 m0 => m1 via 0-1 items 1\n"
        "run c @ gpu1 items 1\n"
        "run c @ gpu0 items 0\n"
    )
    assert print_plan(diamond.graph, diamond.cluster, plan) == text
    assert parse_plan(text, diamond.graph, diamond.cluster) == plan


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run a on gpu0", "line 4: expected a line 'run ...'"),
        ("run nobody @ gpu0", "no task is called 'nobody'; there are: a, b, c, d"),
        ("run a @ tpu", "no device is called 'tpu'; there are: gpu0, gpu1"),
        ("run a @ gpu0 items one", "line 4: expected a line 'run ...'"),
        ("walk a @ gpu0", "line 4: expected the end"),
    ],
)
def test_wrong_plan_line_is_named(diamond: Instance, line: str, message: str) -> None:
    text = f'plan worked on gpus\ndigests 0f 1e\norigin "x"\n{line}\n'
    with pytest.raises(PlanError, match=message):
        parse_plan(text, diamond.graph, diamond.cluster)


def test_wrong_graph_line_is_named() -> None:
    with pytest.raises(GraphError, match="line 2: expected a line 'tensor"):
        parse_graph("graph g\nsomething else\noutputs ()\n")


def test_graph_text_with_unknown_tensor_is_an_error() -> None:
    with pytest.raises(GraphError, match="no tensor is called 'x'"):
        parse_graph("graph g\noutputs x\n")
