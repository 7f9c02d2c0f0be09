"""Routed networks and guarded plans as text, files and networkx graphs, and their digests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from heteroplace.errors import GraphError, PlanError
from heteroplace.files.graph_file import graph_from_json, graph_to_json
from heteroplace.files.plan_file import plan_from_json, plan_to_json, replayed_plan
from heteroplace.model.digests import first_difference
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.model.text import parse_graph, parse_plan, print_graph, print_plan
from tests.instances import diamond
from tests.routed_plans import RoutedCase, layer_graph, routed_plans
from tests.strategies import exact_cases


@pytest.mark.costly(5)
@given(routed_plans())
@exact_cases(100)
def test_networks_and_plans_come_back_from_text_files_and_networkx(case: RoutedCase) -> None:
    graph, cluster, plan = case.instance.graph, case.instance.cluster, case.plan
    assert parse_graph(print_graph(graph)) == graph
    assert graph_from_json(graph_to_json(graph)).graph == graph
    assert TaskGraph.from_networkx(graph.to_networkx()) == graph
    assert parse_plan(print_plan(graph, cluster, plan), graph, cluster) == plan
    value = plan_to_json(plan, graph, cluster)
    assert plan_from_json(value, graph, cluster) == plan
    assert replayed_plan(value, graph, cluster) == plan


def test_text_says_what_is_routed() -> None:
    graph = layer_graph()
    text = print_graph(graph)
    assert "task r.0.0 dense reads r.loads,r.x.0 flops 16 weights 5 branch r 0\n" in text
    assert "tensor r.x.0 = r.send 0 int8 [6,8] 48 in r.in\n" in text
    assert text.endswith(
        "buffer r.in 104\nbuffer r.mid 104\nbuffer r.out 104\n"
        "router r loads r.loads cells 6 top 2 capacities 1,2,4,6;1,2,4,6;1,2,4,6 "
        "overflow rounds quantum 1\n"
    )


def test_whatever_a_plan_depends_on_changes_the_digests() -> None:
    graph = layer_graph()
    router = graph.routers[0]
    others = [
        replace(graph, routers=(replace(router, capacities=((1, 6),) * 3),)),
        replace(graph, routers=(replace(router, overflow="drop"),)),
        replace(graph, buffers=(("r.in", 112), *graph.buffers[1:])),
        replace(graph, tasks=(*graph.tasks[:-1], replace(graph.tasks[-1], branch=("r", 0)))),
    ]
    digests = {one.structure_digest for one in (graph, *others)}
    assert len(digests) == len(others) + 1
    assert len({one.digest() for one in (graph, *others)}) == len(others) + 1
    assert "has other routers" in first_difference(others[0], graph)
    assert "has branch None for task" in first_difference(graph, others[3])


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("branch r 0", "branch", "expected a line 'task ...'"),
        ("top 2", "top two", "expected a line 'router ...'"),
        ("loads r.loads", "loads r.lods", "no tensor is called 'r.lods'"),
    ],
)
def test_text_of_another_form_is_refused(old: str, new: str, fault: str) -> None:
    with pytest.raises(GraphError, match=fault):
        parse_graph(print_graph(layer_graph()).replace(old, new, 1))


def json_of(case: RoutedCase) -> dict[str, object]:
    return plan_to_json(case.plan, case.instance.graph, case.instance.cluster)


@pytest.mark.costly
@given(routed_plans())
@exact_cases(20)
def test_guards_in_files_are_checked(case: RoutedCase) -> None:
    graph, cluster = case.instance.graph, case.instance.cluster
    value = json_of(case)
    steps = value["steps"]
    assert isinstance(steps, list)
    index = next(i for i, step in enumerate(steps) if "guard" in step)
    for change, fault in (
        ({"router": "nobody"}, "no router is called"),
        ({"when": "later"}, "expected one of active, predicted, missed"),
        ({"branch": -1}, "expected a whole number >= 0"),
    ):
        step = steps[index] | {"guard": steps[index]["guard"] | change}
        faulty = value | {"steps": [*steps[:index], step, *steps[index + 1 :]]}
        with pytest.raises(PlanError, match=fault):
            plan_from_json(faulty, graph, cluster)


def test_a_plan_of_a_static_network_says_nothing_of_guards() -> None:
    case = diamond()
    plan = Plan(case.graph.digest(), case.cluster.digest(), (), "none")
    assert set(plan_to_json(plan, case.graph, case.cluster)) == {
        *("schema_version", "graph", "graph_digest", "cluster", "cluster_digest"),
        *("structure_digest", "origin", "steps"),
    }
