"""The page of a solution as text: it stands alone, says what is missing, and breaks on no name."""

from __future__ import annotations

import base64
import re
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from heteroplace.files.reader import parse_json
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.memory_use.live_memory import live_curves, live_peaks
from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Timeline
from heteroplace.report.headline import solution_headline
from heteroplace.report.html.content import Measured, MeasuredTime, SolverPoint
from heteroplace.report.html.encode import MAX_CURVE_POINTS, encode
from heteroplace.report.html.layer_rows import MAX_CHILDREN, layer_tree
from heteroplace.report.html.page import page_text
from heteroplace.report.notes import solution_notes
from heteroplace.solve import SolveOptions, get_solver, solve_network
from heteroplace.solve.solve_report import report_content
from tests.instances import gpus, instance, problem_of
from tests.strategies import Instance, exact_cases, graphs, instances


def text_of(solution: Solution, measured: Measured | None = None, **options: Any) -> str:
    known = {"progress": (), "memory": (), "properties": {}, "command": "make page"} | options
    return page_text(report_content(solution, measured, **known))


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script id="data"[^>]*>([^<]*)</script>', text)
    assert found is not None
    value: Any = parse_json(zlib.decompress(base64.b64decode(found[1])).decode())
    assert isinstance(value, dict)
    return value


@pytest.fixture
def solution(diamond: Instance) -> Solution:
    return solve_network(problem_of(diamond), SolveOptions(iterations=200), solver="heft")


def test_it_begins_with_the_headline(solution: Solution) -> None:
    text = text_of(solution)
    assert f'<p class="lead">{solution_headline(solution)}</p>' in text
    assert text.index('class="lead"') < text.index('id="timeline"')


def test_it_asks_for_nothing_from_anywhere(solution: Solution) -> None:
    text = text_of(solution)
    addresses = set(re.findall(r"https?://[^\s\"'`<)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a language, not a place
    assert not re.search(r"<link|<img|\ssrc=|@import|url\((?!#)", text)


def test_equal_solutions_make_equal_pages(solution: Solution) -> None:
    assert text_of(solution) == text_of(solution)


def test_names_end_no_element_and_begin_none(diamond: Instance) -> None:
    name = "</script><b>&\"'{{style}}"
    graph = replace(diamond.graph, name=name)
    case = replace(diamond, graph=graph)
    text = text_of(solve_network(problem_of(case), SolveOptions(iterations=10), solver="heft"))
    assert text.count("</script>") == 2
    assert "<b>&" not in text
    assert data_of(text)["graph"] == name


def test_it_says_what_is_missing_and_how_to_get_it(solution: Solution) -> None:
    missing = data_of(text_of(solution))["missing"]
    assert "heteroplace report model.so --measure" in missing["measured"]
    assert "heteroplace place" in missing["progress"]
    point = SolverPoint(5, "heft", 12, 10)
    known = data_of(text_of(solution, Measured(Timeline((), "measured")), progress=(point,)))
    assert known["missing"] == {}
    assert known["progress"] == [[5, "heft", 12, 10]]


def test_a_number_that_is_none_is_null_for_the_scripts(solution: Solution) -> None:
    point = SolverPoint(5, "heft", float("nan"), 10)  # type: ignore[arg-type]
    assert data_of(text_of(solution, progress=(point,)))["progress"] == [[5, "heft", None, 10]]


def test_measured_times_stand_beside_predicted_ones(solution: Solution) -> None:
    spans = data_of(text_of(solution))["runs"]
    assert [run["label"] for run in spans] == ["predicted"]
    content = report_content(solution, None, (), (), {}, "")
    measured = replace(content.predicted, source="measured")
    time = MeasuredTime("this", 10, 9, 12)
    data = data_of(text_of(solution, Measured(measured, time, (replace(time, name="TVM"),))))
    assert [run["label"] for run in data["runs"]] == ["predicted", "measured"]
    assert data["accuracy"]["predicted"] == data["accuracy"]["measured"]
    assert data["measured"]["peers"] == [["TVM", 10, 9, 12, "rounds"]]


def test_a_bound_that_is_not_known_is_none_of_zero(solution: Solution) -> None:
    assert "lower bound" in text_of(solution)
    assert "gap 100 %" not in text_of(replace(solution, bound_ns=0))


def test_it_knows_what_moving_each_task_costs(solution: Solution) -> None:
    found = data_of(text_of(solution))["moves"]
    assert found["tasks"] == [0, 1, 2, 3]
    placement = solution.plan.placement(4)
    stays = [row[placement[task]] for task, row in enumerate(found["ns"])]
    assert stays == [found["baseline"]] * 4


@given(instances(max_tasks=6))
@exact_cases(40)
def test_columns_are_those_of_the_solution(case: Instance) -> None:
    problem = problem_of(case)
    result = get_solver("heft").solve(problem, SolveOptions())
    found = Solution(case.graph, case.cluster, case.costs, result.plan, result.objective_ns, 0)
    content = report_content(found, None, (), (), {}, "")
    data, timeline = encode(content), content.predicted
    (run,) = data["runs"]
    spans = set()
    for lane, steps in enumerate(run["step"]):
        step, end = 0, 0
        rows = zip(steps, run["pause"][lane], run["length"][lane], strict=True)
        for delta, pause, length in rows:
            step, start = step + delta, end + pause
            end = start + length
            spans.add((step, run["lanes"][lane], start, end))
    assert spans == {(s.step, s.resource, s.start_ns, s.finish_ns) for s in timeline.spans}


@given(instances(max_tasks=6))
@exact_cases(40)
def test_memory_over_time_is_never_above_the_peak(case: Instance) -> None:
    plan = get_solver("heft").solve(problem_of(case), SolveOptions()).plan
    of = case.graph, case.cluster, case.costs, plan
    for curve, peak in zip(live_curves(*of), live_peaks(*of), strict=True):
        assert curve[0][0] == 0
        assert all(0 <= num_bytes <= peak.num_bytes for _, num_bytes in curve)
        assert [ns for ns, _ in curve] == sorted({ns for ns, _ in curve})


class Unsearched(tuple[str, ...]):
    """Names that nobody may look for one by one: a full mesh has thousands."""

    def index(self, *_args: Any) -> int:
        raise AssertionError("searched from its beginning")


def test_links_of_a_mesh_know_their_channels_without_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs = {(src, dst): 10 for src in range(100) for dst in range(100) if src != dst}
    cluster = gpus(pairs, 100)
    case = instance([("a", "b")], dict.fromkeys("ab", (5,) * 100), cluster)
    plan = Plan(
        case.graph.digest(),
        cluster.digest(),
        (Run(0, 3), Copy(0, 3, 97, cluster.route(3, 97)), Run(1, 97)),
        "by hand",
    )
    channels = cluster.channels
    monkeypatch.setitem(cluster.__dict__, "channels", Unsearched(channels))
    found = Solution(case.graph, cluster, case.costs, plan, 11, 0)
    data = encode(report_content(found, None, (), (), {}, ""))
    assert data["cluster"]["channels"] == list(channels)
    assert [link[5] for link in data["cluster"]["links"]] == list(range(9900))
    assert data["plan"]["channels"] == [[], [channels.index("3-97")], []]


def leaves(tree: list[Any]) -> list[tuple[int, int]]:
    name, first, end, children = tree
    assert name
    assert len(children) <= MAX_CHILDREN
    if not children:
        assert end - first <= MAX_CHILDREN
        return [(first, end)]
    assert (children[0][1], children[-1][2]) == (first, end)
    return [leaf for child in children for leaf in leaves(child)]


def chain(names: list[str]) -> TaskGraph:
    builder = TaskGraphBuilder("chain")
    tensor = None
    for name in names:
        builder.add_task(Task(name, "op"), [] if tensor is None else [tensor])
        tensor = builder.add_tensor(name, num_bytes=1)
    return builder.finalize([tensor])


@pytest.mark.parametrize("count", [1, 24, 25, 200, 3000])
def test_layers_are_neighbours_that_have_all_tasks_once(count: int) -> None:
    found = leaves(layer_tree(chain([f"t{i}" for i in range(count)])))
    assert [task for first, end in found for task in range(first, end)] == list(range(count))


@given(graphs(max_tasks=8))
@exact_cases(40)
def test_any_graph_has_layers(graph: TaskGraph) -> None:
    assert leaves(layer_tree(graph))[-1][1] == len(graph.tasks)


def test_layers_follow_the_paths_in_names() -> None:
    names = [f"net/h.{layer}/op{i}" for layer in range(5) for i in range(10)]
    tree = layer_tree(chain(names))
    assert [child[0] for child in tree[3]] == [f"net/h.{layer}" for layer in range(5)]


def test_layers_are_cut_where_the_fewest_tensors_cross() -> None:
    builder = TaskGraphBuilder("blocks")
    before = None
    for block in range(8):
        builder.add_task(Task(f"in{block}", "op"), [] if before is None else [before])
        root = builder.add_tensor(f"in{block}", num_bytes=1)
        arms = []
        for arm in range(6):
            builder.add_task(Task(f"arm{block}.{arm}", "op"), [root])
            arms.append(builder.add_tensor(f"arm{block}.{arm}", num_bytes=1))
        builder.add_task(Task(f"out{block}", "op"), arms)
        before = builder.add_tensor(f"out{block}", num_bytes=1)
    tree = layer_tree(builder.finalize([before]))
    assert [child[1] for child in tree[3]] == [8 * block for block in range(8)]


def test_a_curve_of_many_points_keeps_its_peak(solution: Solution) -> None:
    content = report_content(solution, None, (), (), {}, "")
    curve = tuple((ns, ns % 97 + (10_000 if ns == 7777 else 0)) for ns in range(20_000))
    found = data_of(page_text(replace(content, memory=(curve, curve))))["memory"]
    assert max(found[0], key=lambda point: point[1]) == [7777, 10_000 + 7777 % 97]
    assert len(found[0]) <= MAX_CURVE_POINTS


def test_notes_say_what_nobody_may_find_out_too_late(solution: Solution) -> None:
    assert "Times came with the graph file; they were not measured here." in solution_notes(
        solution
    )
    moved = replace(solution.plan, origin=f"{solution.plan.origin}; moved by hand: a m0 -> m1")
    assert solution_notes(replace(solution, plan=moved))[0].startswith("The plan was changed")
    unknown = replace(solution, bound_ns=0)
    assert any("No lower bound" in note for note in solution_notes(unknown))
