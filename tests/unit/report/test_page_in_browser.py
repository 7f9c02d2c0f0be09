"""The page in a real browser: every panel is drawn, worked by mouse and keyboard, and answers."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.model.solution import Solution
from heteroplace.report.html.content import Measured, MeasuredTime
from heteroplace.simulate.simulator import simulate
from heteroplace.solve import Problem, SolveOptions, get_solver, solve_network
from heteroplace.solve.moves import moves
from heteroplace.solve.solve_report import SolverRecord, write_report
from tests.browser import see
from tests.instances import gpus, instance
from tests.unit.report.pages import two_branch_solution
from zoo.graphs.catalogue import GRAPHS_VARIABLE, get_instance
from zoo.graphs.layered import Layered, layered_costs, layered_graph

PANELS = [
    *("headline", "timeline", "ops", "what-if", "tasks", "graph"),
    *("memory", "solver", "links", "accuracy", "machine"),
]
"""In this order."""
DRAWN = """
const colours = (canvas) => new Set(canvas.getContext("2d")
  .getImageData(0, 0, canvas.width, canvas.height).data.reduce((found, value, i) => {
    if (i % 4 === 0) found.push(value); return found; }, [])).size;
return {
  panels: all("main > section:not([hidden])").map((section) => section.id),
  texts: all("main > section .body").map((body) => body.innerText.length),
  canvases: all("canvas").map(colours),
  failed: all(".missing").map((node) => node.innerText).filter((text) => text.includes("drawn")),
  empty: all("svg[role=img], svg[role=group]").filter((picture) => !picture.children.length).length,
  answers: Object.fromEntries(all("#answers li").map((node) => [node.id, node.innerText])),
  verdict: $("#verdict").innerText,
  notes: all("#headline > .notes li").map((node) => node.innerText),
};
"""
ANSWER = """
const cells = (row) => [...row.children].map((cell) => cell.innerText.trim());
return { text: $("#answer").innerText, shown: !$("#answer").hidden,
  rows: all("#answer tbody tr").map(cells) };
"""

pytestmark = pytest.mark.costly


def chain_of_convolutions() -> Problem:
    """As ResNet-50: almost a chain, the GPU is faster for each task."""
    cluster = Cluster(
        "pc",
        (Memory("ram", 2**34), Memory("vram", 2**33)),
        (Device("cpu", "cpu", "llvm", 0, 0), Device("gpu0", "cuda", "cuda", 0, 1)),
        (Link("up", 0, 1, 10**10, 5000, "pcie"), Link("down", 1, 0, 10**10, 5000, "pcie")),
        0,
    )
    builder = TaskGraphBuilder("resnet-like")
    value = builder.add_input("image", (1, 3, 224, 224), "float32")
    for number in range(40):
        builder.add_task(Task(f"conv{number}", "nn.conv2d+nn.relu"), [value])
        value = builder.add_tensor(f"conv{number}", num_bytes=800_000)
    graph = builder.finalize([value])
    times = (2_000_000, 150_000)
    costs = build_table(graph, cluster, lambda task, device: Cost.measured(times[device], 900))
    return Problem(graph, cluster, costs)


def randomly_wired() -> Problem:
    return get_instance("rwnn/er32x1").build()


def write(problem: Problem, path: Path, objective: str = "latency", **options: Any) -> Solution:
    record = SolverRecord()
    limits = SolveOptions(
        iterations=400, objective=objective, progress=record, items=options.pop("items", 1)
    )
    solution = solve_network(problem, limits, solver=options.pop("solver", "auto"))
    write_report(solution, path, progress=record.points, command="make it again", **options)
    return solution


def slower(solution: Solution, factor: float) -> Measured:
    """A run in which every step takes longer."""
    timeline = simulate(solution.graph, solution.cluster, solution.costs, solution.plan)
    spans = tuple(
        replace(
            span, start_ns=round(span.start_ns * factor), finish_ns=round(span.finish_ns * factor)
        )
        for span in timeline.spans
    )
    makespan = round(timeline.makespan_ns * factor)
    measured = replace(timeline, spans=spans, source="measured", makespan_ns=makespan)
    return Measured(measured, MeasuredTime("this plan", makespan, makespan - 9, makespan + 9))


def check_drawn(found: dict[str, Any]) -> None:
    assert found["panels"] == PANELS
    assert all(length > 20 for length in found["texts"][:1] + found["texts"][2:])
    assert all(count > 5 for count in found["canvases"])
    assert found["failed"] == []
    assert found["empty"] == 0


def test_every_panel_is_drawn_and_nothing_is_logged(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write(randomly_wired(), path)
    seen = see(path, DRAWN)
    assert seen.console == ()
    check_drawn(seen.found)
    assert len(seen.found["canvases"]) == 1


def test_one_device_that_is_best_is_said_and_the_bound_and_what_limits(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    solution = write(chain_of_convolutions(), path)
    found = see(path, DRAWN).found
    assert found["verdict"] == "One device is best: everything runs on gpu0"
    assert found["notes"] == ["cpu gets no task: none is faster there than where it is."]
    assert found["answers"]["answer-limit"].startswith("Limit: the device gpu0.")
    assert solution.gap_ratio == 0
    assert found["answers"]["answer-bound"].startswith("Bound: reached.")
    assert "nothing was measured" in found["answers"]["answer-prediction"]


def test_it_answers_why_a_task_is_there_and_what_moving_it_would_cost(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    problem = randomly_wired()
    solution = write(problem, path)
    task = len(problem.graph.tasks) // 2
    name = problem.graph.tasks[task].name
    seen = see(path, ANSWER, address=f"#op={name}")
    assert seen.console == ()
    assert seen.found["shown"]
    assert solution.plan.reasons[task] in seen.found["text"]
    device = solution.plan.placement(len(problem.graph.tasks))[task]
    known = moves(problem, solution.plan, [task])
    rows = {row[0]: row for row in seen.found["rows"][: len(problem.cluster.devices)]}
    for other, ns in zip(problem.cluster.devices, known.objective_ns[0], strict=True):
        told = rows[other.name][-1]
        if other.name == problem.cluster.devices[device].name:
            assert told == "it is here"
        else:
            assert ns is not None
            share = abs(ns - known.baseline_ns) / known.baseline_ns
            percent = float(re.search(r"([\d.]+) %", told)[1])  # type: ignore[index]
            assert percent == pytest.approx(100 * share, abs=0.5)


def test_a_search_finds_a_task_by_keyboard(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write(chain_of_convolutions(), path)
    script = """
    const input = $("#ask-input");
    const type = (text) => { input.value = text; input.dispatchEvent(new Event("input")); };
    input.focus();
    type("conv1");
    const first = all("#ask-list li").map((item) => item.innerText.split(" ")[0]);
    press(input, "ArrowDown"); press(input, "ArrowDown");
    const chosen = $("#ask-list [aria-selected=true]").innerText.split(" ")[0];
    const named = input.getAttribute("aria-activedescendant");
    $("#ask-form").requestSubmit();
    const shown = $("#answer h3").innerText;
    type("RELU");
    const byOp = all("#ask-list li").length;
    type("nothing like it");
    const none = $("#ask-list").innerText;
    return { first, chosen, named, shown, byOp, none, hash: location.hash };
    """
    found = see(path, script).found
    assert found["first"][:3] == ["conv1", "conv10", "conv11"]
    assert found["chosen"] == "conv10"
    assert found["named"] == "ask-1"
    assert found["shown"] == "conv10 is on gpu0"
    assert found["hash"] == "#op=conv10"
    assert found["byOp"] == 31  # 30 and how many more
    assert found["none"] == "no task has this in its name, layer or op"


def test_the_timeline_zooms_moves_and_tells_what_is_under_the_mouse(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write(chain_of_convolutions(), path)
    script = """
    const canvas = $("#timeline canvas"), status = () => $("#timeline [role=status]").innerText;
    const button = (label) => $(`#timeline [aria-label="${label}"]`).click();
    const found = { whole: status() };
    button("+ zoom in"); found.zoomed = status();
    button("all of the run"); found.again = status();
    press(canvas, "+"); press(canvas, "ArrowLeft"); found.keys = status(); press(canvas, "Home");
    press(canvas, "w"); press(canvas, "a"); found.letters = status(); press(canvas, "Home");
    const box = canvas.getBoundingClientRect();
    const at = (type, x, y) => canvas.dispatchEvent(new PointerEvent(type,
      { clientX: box.left + x, clientY: box.top + y, pointerId: 1, bubbles: true }));
    at("pointermove", 700, 24 + 30 + 12); found.tip = $("#tip").innerText;
    at("pointerleave", 0, 0); found.gone = $("#tip").hidden;
    canvas.setPointerCapture = () => {};
    at("pointerdown", 700, 66); at("pointermove", 600, 66); at("pointerup", 600, 66);
    found.afterDrag = $("#answer").hidden;
    at("pointerdown", 700, 66); at("pointerup", 700, 66); found.answer = $("#answer h3").innerText;
    canvas.dispatchEvent(new WheelEvent("wheel",
      { deltaY: -300, ctrlKey: true, clientX: box.left + 500 }));
    found.wheel = status();
    return found;
    """
    found = see(path, script).found
    assert found["whole"] == found["again"]
    assert len({found["whole"], found["zoomed"], found["keys"], found["wheel"]}) == 4
    assert found["letters"] == found["keys"]
    assert re.match(r"conv\d+\nnn.conv2d\+nn.relu\n781 KiB → 781 KiB\ngpu0: ", found["tip"])
    assert "on the critical path" in found["tip"]
    assert found["gone"] is True
    assert found["afterDrag"] is True
    assert found["answer"].endswith("is on gpu0")


def test_dark_is_the_readers_choice_and_has_a_switch(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write(chain_of_convolutions(), path)
    script = """
    const back = () => getComputedStyle(document.body).backgroundColor;
    const before = back();
    $("#theme").click();
    return [before, back(), document.documentElement.dataset.theme];
    """
    light, dark = "rgb(255, 255, 255)", "rgb(20, 23, 27)"
    assert see(path, script).found == [light, dark, "dark"]
    assert see(path, script, "--blink-settings=preferredColorScheme=0").found == [
        dark,
        light,
        "light",
    ]


def test_layers_open_and_close_again(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write(chain_of_convolutions(), path)
    script = """
    const name = (node) => node.querySelector("desc").textContent.split("\\n")[0];
    const names = () => all("#graph .node").map(name);
    const whole = names();
    press($("#graph .node"), "Enter");
    const inside = names();
    $("#graph .node").dispatchEvent(new MouseEvent("click"));
    const asked = $("#answer h3").innerText;
    $("#graph nav button").click();
    return { whole, inside, asked, back: names(), edges: all("#graph svg path").length };
    """
    found = see(path, script).found
    assert len(found["whole"]) < 24
    assert found["inside"][0] == "conv0"
    assert found["asked"] == "conv0 is on gpu0"
    assert found["back"] == found["whole"]
    assert found["edges"] >= len(found["whole"]) - 1


def test_devices_are_told_apart_without_colours(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write(randomly_wired(), path)
    script = """
    const ends = (line) => ["x1", "y1", "x2", "y2"].map((name) => line.getAttribute(name)).join();
    return all("pattern").map((one) => [...one.querySelectorAll("line")].map(ends).join(" "));
    """
    patterns = see(path, script).found
    assert len(set(patterns)) == len(patterns) == 3


def test_a_measured_run_is_beneath_the_predicted_one_and_judged(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    solution = two_branch_solution()
    for factor, verdict in ((1.02, "right"), (1.1, "about right"), (2.0, "wrong")):
        write_report(solution, path, measured=slower(solution, factor))
        seen = see(path, DRAWN)
        assert seen.console == ()
        check_drawn(seen.found)
        assert len(seen.found["canvases"]) == 2
        assert seen.found["answers"]["answer-prediction"].startswith(f"Prediction: {verdict}.")


def test_a_plan_for_throughput_says_which_resource_limits_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    solution = write(randomly_wired(), path, "throughput")
    seen = see(path, DRAWN)
    assert seen.console == ()
    check_drawn(seen.found)
    assert "per item" in seen.found["answers"]["answer-bound"]
    limit = seen.found["answers"]["answer-limit"]
    assert limit.startswith("Limit: ")
    assert any(name in limit.split(",")[0] for name in solution.cluster.resources)


def test_batches_show_their_items(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    problem = randomly_wired()
    graph, cluster = problem.graph, problem.cluster
    devices = tuple(replace(device, batch_sizes=(1, 2)) for device in cluster.devices)
    cluster = replace(cluster, devices=devices)
    costs = build_table(
        graph,
        cluster,
        lambda task, device, batch: Cost.given((problem.costs.run_ns(task, device) or 1) * batch),
        (1, 2),
    )
    solution = write(Problem(graph, cluster, costs), path, items=2, solver="bheft")
    name = graph.tasks[3].name
    seen = see(path, ANSWER, address=f"#op={name}")
    assert seen.console == ()
    assert solution.plan.items == 2
    assert re.search(r"items 0(,1)?: starts at", seen.found["text"])


def test_of_the_channels_of_a_mesh_those_in_use_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    pairs = {(src, dst): 10 for src in range(100) for dst in range(100) if src != dst}
    cluster = gpus(pairs, 100)
    case = instance([("a", "b")], dict.fromkeys("ab", (5,) * 100), cluster)
    steps = (Run(0, 3), Copy(0, 3, 97, cluster.route(3, 97)), Run(1, 97))
    plan = Plan(case.graph.digest(), cluster.digest(), steps, "by hand")
    write_report(Solution(case.graph, cluster, case.costs, plan, 11, 0), path)
    script = """
    const cells = (row) => [...row.children].slice(0, 3).map((cell) => cell.innerText.trim());
    return { rows: all("#links tbody tr").map(cells),
      rest: all("#links .body > p").map((node) => node.innerText) };
    """
    seen = see(path, script)
    assert seen.console == ()
    channel, *matrix = seen.found["rows"]
    assert channel == ["3-97", "m3 \u2192 m97 10.0 GB/s, 0 ns", "1"]
    assert len(matrix) == 2
    assert seen.found["rest"] == ["and 9,899 more channels, of which 0 are used"]


@pytest.mark.skipif(GRAPHS_VARIABLE not in os.environ, reason=f"{GRAPHS_VARIABLE} names no folder")
def test_the_published_googlenet_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write(get_instance("published/googlenet").build(), path)
    seen = see(path, DRAWN)
    assert seen.console == ()
    check_drawn(seen.found)
    assert "Critical path: " in seen.found["answers"]["answer-limit"]


@pytest.mark.slow
def test_twenty_thousand_tasks_are_two_megabytes_and_open(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    layers = Layered(20_000)
    cluster = get_instance("layered/1000").build().cluster
    graph = layered_graph(layers, cluster)
    roomy = replace(
        cluster, memories=tuple(replace(memory, bytes=2**50) for memory in cluster.memories)
    )
    problem = Problem(graph, roomy, layered_costs(layers, graph, roomy))
    plan = get_solver("heft").solve(problem, SolveOptions()).plan
    assert len(plan.steps) > 20_000
    write(problem, path, solver="heft")
    assert path.stat().st_size < 2_000_000
    seen = see(path, DRAWN)
    assert seen.console == ()
    check_drawn(seen.found)
