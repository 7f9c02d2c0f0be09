"""What values show of themselves: one line each, a page in a notebook, and a map of devices."""

from __future__ import annotations

import copy
import pickle
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from heteroplace.model.cluster import Cluster
from heteroplace.model.plan import Plan
from heteroplace.model.solution import RunTime, Solution
from heteroplace.model.timeline import Timeline
from tests.strategies import Instance, exact_cases, instances_with_plan
from tests.unit.questions.worked import diamond_solution, lanes_solution, solution_of

MEMBERS = (("conv:conv", "relu:relu"), ("enc:dense",), ("enc:dense",), ())
MAX_LENGTH = 120


def layered() -> Solution:
    """The diamond as an imported model: b and c are one layer, and c is on another device."""
    solution = diamond_solution()
    tasks = tuple(replace(t, members=m) for t, m in zip(solution.graph.tasks, MEMBERS, strict=True))
    return replace(solution, graph=replace(solution.graph, tasks=tasks))


def test_a_solution_is_one_line_of_its_times() -> None:
    solution = diamond_solution()
    assert solution.singles == (("gpu0", 12), ("gpu1", 16))
    expected = "<Solution: 'worked' on gpus, 10 ns, 1.20x the best single device, gap 0 %>"
    assert repr(solution) == str(solution) == f"{solution}" == expected


def test_the_line_has_expected_times_where_there_are_any() -> None:
    times = {"gpu0": RunTime(60, 50, 70), "gpu1": RunTime(40, 30, 50)}
    solution = replace(
        diamond_solution(),
        expected=RunTime(20, 15, 25),
        single_times=tuple(times.items()),
        bound_ns=9,
    )
    expected = "<Solution: 'worked' on gpus, 20 ns, 2.00x the best single device, gap 10.0 %>"
    assert repr(solution) == expected


def test_the_line_of_throughput_has_times_per_item() -> None:
    solution = replace(diamond_solution(), item_ns=6, bound_ns=6, singles=(("gpu0", 12),))
    expected = "<Solution: 'worked' on gpus, 6 ns per item, 2.00x the best single device, gap 0 %>"
    assert repr(solution) == expected


def test_what_is_not_known_is_left_out() -> None:
    solution = replace(diamond_solution(), singles=(), bound_ns=0)
    assert repr(solution) == "<Solution: 'worked' on gpus, 10 ns>"


def test_other_values_are_one_line() -> None:
    solution = diamond_solution()
    assert repr(solution.cluster) == "<Cluster: 'gpus' of gpu0, gpu1>"
    assert repr(solution.plan) == "<Plan: 4 runs, 2 copies, by heft>"
    assert repr(solution.timeline) == "<Timeline: 6 steps on 4 resources, 10 ns, simulated>"


def test_names_of_any_length_and_letters_leave_one_line() -> None:
    solution = diamond_solution()
    long = "n\n\x1b[31m" * 400
    devices = tuple(replace(d, name=f"{long}{n}") for n, d in enumerate(solution.cluster.devices))
    cluster = replace(solution.cluster, name=long, devices=devices)
    plan = replace(solution.plan, origin=long)
    hostile = replace(
        solution,
        graph=replace(solution.graph, name=long),
        cluster=cluster,
        plan=plan,
        item_ns=10**12 - 1,
        bound_ns=1,
        singles=(("gpu0", 10**18),),
    )
    for value in (hostile, cluster, plan):
        assert len(repr(value)) <= MAX_LENGTH
        assert repr(value).isprintable()
    named = replace(solution, graph=replace(solution.graph, name=long))
    assert "\x1b" not in named._repr_html_()


@given(instances_with_plan(max_tasks=6))
@exact_cases(30)
def test_every_value_is_a_short_line(case: tuple[Instance, Plan]) -> None:
    solution = solution_of(*case)
    for value in (solution, solution.cluster, solution.plan, solution.timeline):
        text = repr(value)
        assert text.startswith(f"<{type(value).__name__}: ") and text.endswith(">")
        assert len(text) <= MAX_LENGTH and "\n" not in text


def test_placement_names_the_device_of_each_task_and_layer() -> None:
    placement = layered().placement
    assert dict(placement) == {
        "a": "gpu0",
        "b": "gpu0",
        "c": "gpu1",
        "d": "gpu0",
        "conv": "gpu0",
        "relu": "gpu0",
        "enc": "gpu0+gpu1",
    }
    assert len(placement) == 7 and "conv" in placement and "b.0" not in placement


def test_a_task_on_several_devices_names_all_of_them() -> None:
    solution = lanes_solution()
    placement = solution.placement
    devices = solution.plan.devices_of_tasks(len(solution.graph.tasks))
    shared = [task for task, ids in enumerate(devices) if len(ids) > 1]
    assert shared
    for task in shared:
        names = [solution.cluster.devices[device].name for device in devices[task]]
        assert placement[solution.graph.tasks[task].name] == "+".join(names)


def test_placement_cannot_be_changed_and_names_a_near_task() -> None:
    solution = layered()
    placement: Any = solution.placement
    with pytest.raises(TypeError):
        placement["a"] = "gpu1"
    with pytest.raises(KeyError, match=r"did you mean .conv."):
        placement["convv"]
    assert placement.get("x") is None
    assert pickle.loads(pickle.dumps(solution)).placement == placement
    assert copy.deepcopy(solution) == solution


def test_positions_of_devices_are_where_they_were() -> None:
    solution = diamond_solution()
    assert solution.plan.placement(4) == (0, 0, 1, 0)


def pictures(html: str) -> list[ElementTree.Element]:
    """Return the SVG elements of a page; what is around them has to be well-formed too."""
    page = ElementTree.fromstring(f"<div>{html}</div>")
    return [each for each in page.iter() if each.tag.endswith("}svg")]


def bars(picture: ElementTree.Element) -> list[str]:
    """Return what each bar of a picture says when the mouse is over it."""
    rects = [each for each in picture.iter() if each.tag.endswith("}rect")]
    return [str(rect[0].text) for rect in rects]


def test_a_solution_shows_its_timeline_in_a_notebook() -> None:
    solution = diamond_solution()
    (picture,) = pictures(solution._repr_html_())
    names = [text.split(",")[0] for text in bars(picture)]
    assert len(names) == len(solution.plan.steps)
    assert names == ["a", "b", "d", "c", "a.0 m0 => m1", "c.0 m1 => m0"]


def test_names_are_text_in_a_notebook() -> None:
    solution = diamond_solution()
    tasks = tuple(replace(task, members=("<b>&:conv",)) for task in solution.graph.tasks)
    named = replace(
        solution,
        graph=replace(solution.graph, name="<script>", tasks=tasks),
        cluster=replace(solution.cluster, name="<i>"),
    )
    for value in (named, named.cluster):
        html = value._repr_html_()
        pictures(html)
        assert "<script>" not in html and "<b>&" not in html and "<i>" not in html


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (diamond_solution().cluster, ["gpu0", "gpu1", "memory", "bandwidth"]),
        (diamond_solution().plan, ["device 0", "3 runs", "memory 0 to 1", "1 copies"]),
        (diamond_solution().timeline, ["6 steps on 4 resources"]),
    ],
)
def test_other_values_are_tables_in_a_notebook(
    value: Cluster | Plan | Timeline, texts: list[str]
) -> None:
    html = value._repr_html_()
    assert len(pictures(html)) == isinstance(value, Timeline)
    for text in texts:
        assert text in html


def test_a_report_is_the_page_of_the_solution(tmp_path: Path) -> None:
    solution = diamond_solution()
    plain, measured = tmp_path / "plain.html", tmp_path / "measured.html"
    solution.report(plain)
    solution.report(measured, measured=replace(solution.timeline, source="measured"), command="me")
    assert "worked on gpus" in plain.read_text()
    assert plain.read_text().startswith("<!doctype html>")
    assert len(measured.read_text()) > len(plain.read_text())
    with pytest.raises(OSError):
        solution.report(tmp_path / "nowhere" / "page.html")
