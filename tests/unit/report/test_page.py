"""The page of a solution as text: it stands alone, says what is missing, and breaks on no name."""

from __future__ import annotations

import base64
import re
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

import heteroplace
from heteroplace.control_groups import processor_name
from heteroplace.files.reader import parse_json
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.cost import Cost, CostTable, build_table, table_from_rows
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.memory_use.live_memory import live_curves, live_peaks
from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Timeline
from heteroplace.report.headline import headline_parts, solution_headline
from heteroplace.report.html.content import Measured, MeasuredTime, PageContent, SolverPoint
from heteroplace.report.html.encode import MAX_CURVE_POINTS, encode
from heteroplace.report.html.layer_rows import MAX_CHILDREN, layer_tree
from heteroplace.report.html.page import page_text
from heteroplace.report.machine_text import machine_text
from heteroplace.report.notes import solution_notes
from heteroplace.solve import Problem, SolveOptions, get_solver, solve_network
from heteroplace.solve.alternatives import MAX_TASKS, alternatives
from heteroplace.solve.solve_report import report_content
from tests.instances import gpus, instance, problem_of
from tests.strategies import Instance, exact_cases, graphs, instances
from tests.unit.report.pages import measured_run, two_branch_solution
from tests.unit.report.test_explicit_plans import training_step


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
    claim, rest = headline_parts(solution)
    assert claim == "predicted 1.20x as fast as the best single device"
    assert f'<h2 id="verdict">{claim.capitalize()}</h2>' in text
    assert f'<p class="lead">{rest.removeprefix(": ")}</p>' in text
    assert text.index('id="verdict"') < text.index('id="timeline"')
    assert claim + rest == solution_headline(solution)


def test_it_asks_for_nothing_from_anywhere(solution: Solution) -> None:
    text = text_of(solution)
    addresses = set(re.findall(r"https?://[^\s\"'`<)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a language, not a place
    assert not re.search(r"<link|<img|\ssrc=|@import|url\((?!#)", text)


def test_equal_solutions_make_equal_pages_at_one_date(
    solution: Solution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    text = text_of(solution)
    assert text == text_of(solution)
    assert "<dt>date</dt><dd>1970-01-02 00:00 UTC</dd>" in text
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert text != text_of(solution)


def test_the_title_has_the_file_and_the_processor_and_the_page_the_version() -> None:
    solution = two_branch_solution()
    measured = measured_run(solution)
    content = report_content(solution, measured, (), (), {}, "", "models/net.onnx")
    text = page_text(content)
    assert "<title>net.onnx on Xeon Test 1, 2 cores + Test GPU</title>" in text
    assert "<h1>net.onnx on Xeon Test 1, 2 cores + Test GPU</h1>" in text
    about = dict(content.about)
    assert about["file"] == "models/net.onnx"
    assert about["network"] == "two-branches"
    assert about["heteroplace"] == heteroplace.__version__
    assert about["other programs"].endswith("used 0.4 cores during the measured runs")
    unnamed = report_content(solution, None, (), (), {}, "")
    assert unnamed.title == "two-branches on Xeon Test 1, 2 cores + Test GPU"


def test_a_cluster_of_this_machine_has_the_name_of_its_processor(solution: Solution) -> None:
    cpu = Device("cpu.all", "cpu", "llvm", 0, 0, (0, 1, 2))
    cluster = Cluster("local-cpu", (Memory("ram", 2**30),), (cpu,), (), 0)
    assert machine_text(cluster, "AMD EPYC(TM) 7763") == "AMD EPYC 7763, 3 cores"
    assert machine_text(cluster) == "local-cpu: cpu, 3 cores"
    assert machine_text(solution.cluster, "AMD EPYC 7763") == "gpus: 2 x cuda"
    elsewhere = replace(cluster, devices=(replace(cpu, host="far"),))
    assert machine_text(elsewhere, "AMD EPYC 7763") == "local-cpu: cpu, 3 cores"
    own = solve_network(Problem(*_one_task(cluster)), SolveOptions(iterations=1))
    name = processor_name() and " ".join(processor_name().replace("(R)", "").split())
    assert name in report_content(own, None, (), (), {}, "").title


def _one_task(cluster: Cluster) -> tuple[TaskGraph, Cluster, CostTable]:
    graph = chain(["a"])
    return graph, cluster, build_table(graph, cluster, lambda task, device: Cost.given(5))


def test_the_peak_of_a_device_is_given_or_measured_or_unknown() -> None:
    solution = two_branch_solution()
    assert report_content(solution, None, (), (), {}, "").peak_flops == (10**12, 4 * 10**12)
    unknown = two_branch_solution(has_peaks=False)
    assert report_content(unknown, None, (), (), {}, "").peak_flops == (None, None)
    measured = replace(measured_run(unknown), peak_flops={"cpu.0": 7})
    assert report_content(unknown, measured, (), (), {}, "").peak_flops == (7, None)


def test_one_device_fewer_and_one_more_are_predicted() -> None:
    solution = two_branch_solution()
    by_label = {one.label: one for one in alternatives(solution)}
    labels = [
        "without cpu.0",
        "without gpu0",
        "with one more like cpu.0",
        "with one more like gpu0",
    ]
    assert list(by_label) == labels
    singles = dict(solution.singles)
    assert by_label["without cpu.0"].objective_ns == singles["gpu0"]
    assert by_label["without gpu0"].objective_ns == singles["cpu.0"]
    assert by_label["without gpu0"].devices == ("cpu.0",)
    for label in labels[2:]:
        assert (by_label[label].objective_ns or 0) <= solution.objective_ns
    assert by_label["with one more like gpu0"].changes == (
        "device gpu1 added, like gpu0, with a memory and links of its own like those",
    )


def test_a_change_that_cannot_be_placed_says_why() -> None:
    solution = two_branch_solution()
    graph = solution.graph
    pinned = [replace(task, devices=("gpu0",)) for task in graph.tasks[:1]]
    bound = replace(graph, tasks=(*pinned, *graph.tasks[1:]))
    costs = table_from_rows(bound, solution.cluster, solution.costs.rows)
    case = Problem(bound, solution.cluster, costs)
    placed = solve_network(case, SolveOptions(iterations=20), solver="heft")
    without = next(one for one in alternatives(placed) if one.label == "without gpu0")
    assert without.objective_ns is None
    assert "gpu0" in without.reason


def test_a_large_graph_says_which_command_answers_what_if(solution: Solution) -> None:
    graph = chain([f"t{number}" for number in range(MAX_TASKS + 1)])
    costs = build_table(graph, solution.cluster, lambda task, device: Cost.given(5))
    large = solve_network(Problem(graph, solution.cluster, costs), SolveOptions(), solver="heft")
    content = report_content(large, None, (), (), {}, "")
    assert content.alternatives == ()
    assert (
        "`heteroplace simulate PLAN --drop-device NAME --solve`" in content.missing["alternatives"]
    )


def test_an_explicit_schedule_has_no_alternatives_and_says_why() -> None:
    case, plan, _ = training_step()
    schedule = Solution(case.graph, case.cluster, case.costs, plan, 204, 0)
    content = report_content(schedule, None, (), (), {}, "")
    assert content.alternatives == ()
    assert "`heteroplace shard`" in content.missing["alternatives"]


def test_shapes_and_op_types_are_in_the_data() -> None:
    data = data_of(text_of(two_branch_solution()))
    assert data["tensors"]["types"] == ["float32 [1,64,56,56]"]
    assert data["tasks"]["op_types"] == ["nn.conv2d", "nn.conv2d", "add"]
    assert data["tasks"]["layer"][1] == "branch0/block0/conv"


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
    assert "`heteroplace report MODEL --measure 21`" in missing["measured"]
    assert "`heteroplace report MODEL --measure 21`" in missing["time"]
    assert "`heteroplace run MODEL.onnx --compare onnxruntime" in missing["onnxruntime"]
    named = report_content(solution, None, (), (), {}, "", "my net.onnx").missing
    assert "`heteroplace report 'my net.onnx' --measure 21`" in named["time"]
    assert "`heteroplace run 'my net.onnx' --compare onnxruntime" in named["onnxruntime"]
    plan = report_content(solution, None, (), (), {}, "", "plan.json").missing
    assert "`heteroplace report MODEL --measure 21`" in plan["time"]
    assert "heteroplace place" in missing["progress"]
    point = SolverPoint(5, "heft", 12, 10)
    peer = MeasuredTime("onnxruntime 1.32.0", 10, 9, 12)
    measured = Measured(Timeline((), "measured"), peers=(peer,))
    data = data_of(text_of(solution, measured, progress=(point,)))
    assert data["missing"].keys() == {"peak"}
    assert data["progress"] == [[5, "heft", 12, 10]]


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
    assert data["measured"]["peers"] == [["TVM", 10, 9, 12, "rounds", None]]


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
    content = PageContent(found, found.timeline, ())
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
