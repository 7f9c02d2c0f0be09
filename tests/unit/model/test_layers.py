"""The map of layers: what a solution says, edited and demanded again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given

from heteroplace.errors import ClusterError, HeteroPlaceError, LoweringError, SolverError
from heteroplace.model.demands import with_layers
from heteroplace.model.graph import TaskGraph
from heteroplace.model.implementations import twin_name
from heteroplace.model.plan import Plan
from heteroplace.model.solution import Solution
from heteroplace.report.tables import device_table
from heteroplace.simulate.simulator import simulate
from tests.strategies import Instance, exact_cases, instances_with_plan
from tests.unit.questions.worked import diamond_solution, lanes_solution, solution_of

MEMBERS = (("stem/conv:conv", "stem/relu:relu"), ("enc.0:dense",), ("enc.1:dense",), ())


@pytest.fixture
def solution() -> Solution:
    """The diamond as an imported model: c is elsewhere, and d is of no layer."""
    found = diamond_solution()
    tasks = tuple(replace(t, members=m) for t, m in zip(found.graph.tasks, MEMBERS, strict=True))
    return replace(found, graph=replace(found.graph, tasks=tasks))


def allowed(graph: TaskGraph) -> dict[str, tuple[str, ...] | None]:
    return {task.name: task.devices for task in graph.tasks}


def test_a_map_names_layers_and_tasks_without(solution: Solution) -> None:
    assert solution.layers() == {
        "stem/conv": "gpu0",
        "stem/relu": "gpu0",
        "enc.0": "gpu0",
        "enc.1": "gpu1",
        "d": "gpu0",
    }


def test_whose_kernels_a_device_runs_is_no_part_of_the_map(solution: Solution) -> None:
    """A module that is placed anew has no twins yet."""
    first, _ = solution.cluster.devices
    devices = (first, replace(first, name=twin_name(first.name, "tuned")))
    found = replace(solution, cluster=replace(solution.cluster, devices=devices)).layers()
    assert set(found.values()) == {"gpu0"}


def test_what_a_solution_says_holds_when_it_is_demanded(solution: Solution) -> None:
    graph = with_layers(solution.graph, solution.cluster, solution.layers())
    expected = {name: (device,) for name, device in zip("abcd", _devices(solution), strict=True)}
    assert allowed(graph) == expected


def _devices(solution: Solution) -> list[str]:
    placement = solution.plan.placement(len(solution.graph.tasks))
    return [solution.cluster.devices[device].name for device in placement]


@given(instances_with_plan(max_tasks=6))
@exact_cases(30)
def test_any_plan_is_kept_by_its_own_map(case: tuple[Instance, Plan]) -> None:
    solution = solution_of(*case)
    layers = ["even", "odd"]  # which are on several devices, as a rule
    tasks = tuple(
        replace(task, members=(f"{layers[index % 2]}:op",) if index % 3 else ())
        for index, task in enumerate(solution.graph.tasks)
    )
    solution = replace(solution, graph=replace(solution.graph, tasks=tasks))
    graph = with_layers(solution.graph, solution.cluster, solution.layers())
    assert [task.devices for task in graph.tasks] == [(name,) for name in _devices(solution)]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ({"enc": "gpu1"}, {"b": ("gpu1",), "c": ("gpu1",)}),
        ({"enc": "gpu1", "enc.0": "gpu0"}, {"b": ("gpu0",), "c": ("gpu1",)}),
        ({"": "gpu1", "stem": "gpu0"}, {"a": ("gpu0",), **dict.fromkeys("bcd", ("gpu1",))}),
        ({"enc.0": "gpu1", "b": "gpu0"}, {"b": ("gpu0",)}),
        ({}, {}),
    ],
)  # fmt: skip
def test_the_longest_name_holds(
    solution: Solution, layers: Mapping[str, str], expected: Mapping[str, tuple[str]]
) -> None:
    graph = with_layers(solution.graph, solution.cluster, layers)
    assert allowed(graph) == {**dict.fromkeys("abcd"), **expected}


@pytest.mark.parametrize(
    ("layers", "error", "text"),
    [
        ({"enc": "gpu9"}, ClusterError, "no device 'gpu9'"),
        ({"en": "gpu0"}, SolverError, "layers: no task matches en"),
        ({"stem/conv": "gpu0", "stem/relu": "gpu1"}, SolverError, "are one task, a, since"),
    ],
)
def test_what_cannot_be_is_told(
    solution: Solution, layers: Mapping[str, str], error: type[HeteroPlaceError], text: str
) -> None:
    with pytest.raises(error, match=text):
        with_layers(solution.graph, solution.cluster, layers)


def test_what_a_pin_forbids_is_told(solution: Solution) -> None:
    tasks = tuple(replace(task, devices=("gpu0",)) for task in solution.graph.tasks)
    with pytest.raises(LoweringError, match="b is put on 'gpu1', and may run only on gpu0"):
        with_layers(replace(solution.graph, tasks=tasks), solution.cluster, {"enc.0": "gpu1"})


def test_a_notebook_shows_tables_and_nothing_that_acts(solution: Solution) -> None:
    name = "<script>x</script>"
    plan = replace(solution.plan, reasons=(name, *solution.plan.reasons[1:]))
    text = replace(solution, plan=plan)._repr_html_()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert text.count("<table>") == 2
    assert "best single device: 10 ns on gpu0+gpu1" in text


def test_a_notebook_counts_collectives_on_their_own_devices() -> None:
    found = lanes_solution()
    timeline = simulate(found.graph, found.cluster, found.costs, found.plan)
    table = device_table(found.graph, found.cluster, found.plan, timeline).splitlines()
    rows = [line.split() for line in table[-len(found.cluster.devices) :]]
    text = found._repr_html_()
    for name, count, busy, unit, *_ in rows:
        assert f"<td>{name}</td><td>{count}</td><td>{busy} {unit}</td>" in text
