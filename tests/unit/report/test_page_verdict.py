"""Verdict, bars, op types, tooltips, what-if and pictures of the page in a real browser."""

from __future__ import annotations

import base64
import io
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heteroplace.model.units import format_ns
from heteroplace.report.headline import headline_parts
from heteroplace.solve.alternatives import alternatives
from heteroplace.solve.solve_report import report_content, write_report
from tests.browser import see
from tests.unit.report.pages import measured_run, two_branch_solution, write_full_page

BARS = """
return { verdict: $("#verdict").innerText, lead: $("#headline .lead").innerText,
  title: document.title, h1: $("h1").innerText, about: $(".about").innerText,
  bars: all("#times li").map((bar) => [bar.className, bar.querySelector(".name").innerText,
    bar.querySelector(".value").innerText, parseFloat(bar.querySelector(".fill").style.width)]),
  lines: all("#times p").map((node) => node.innerText) };
"""
OPS = """
return { heads: all("#ops thead th").map((cell) => cell.innerText),
  rows: all("#ops tbody tr").map((row) => [...row.children].map((cell) => cell.innerText)),
  lines: all("#ops .body > p").map((node) => node.innerText) };
"""
TIPS = """
const tips = all("#timeline canvas").map((canvas) => {
  const box = canvas.getBoundingClientRect(), texts = new Set();
  for (let y = 30; y < box.height; y += 15) for (let x = 121; x < box.width; x += 4) {
    canvas.dispatchEvent(new PointerEvent("pointermove",
      { clientX: box.left + x, clientY: box.top + y, pointerId: 1, bubbles: true }));
    if (!$("#tip").hidden) texts.add($("#tip").innerText);
  }
  return [...texts];
});
return tips;
"""
WHAT_IF = """
const buttons = all("#what-if button"), answers = {};
for (const button of buttons) {
  button.click();
  answers[button.innerText] = [$("#what-if-answer b").innerText,
    all("#what-if-answer .value").map((node) => node.innerText), $("#what-if-answer").innerText];
}
return { answers, intro: $("#what-if .body > p").innerText,
  role: $("#what-if-answer").getAttribute("role"),
  pressed: buttons.map((button) => button.getAttribute("aria-pressed")) };
"""
PICTURES = """
const blobs = [], names = [];
URL.createObjectURL = (blob) => { blobs.push(blob); return "blob:none"; };
HTMLAnchorElement.prototype.click = function () { names.push(this.download); };
const read = async (blob) => btoa([...new Uint8Array(await blob.arrayBuffer())]
  .map((byte) => String.fromCharCode(byte)).join(""));
for (const kind of ["SVG", "PNG"]) {
  $(`[aria-label="Save the timeline as ${kind}"]`).click();
  for (let i = 0; i < 100 && names.length < (kind === "SVG" ? 1 : 2); i++) await wait(20);
}
return { names, types: blobs.map((blob) => blob.type), svg: await blobs[0].text(),
  png: await read(blobs[1]) };
"""


@pytest.mark.costly
def test_the_verdict_is_large_and_three_bars_have_their_times(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    solution = write_full_page(path)
    seen = see(path, BARS)
    result = seen.found
    assert seen.console == ()
    claim, rest = headline_parts(solution)
    assert result["verdict"].lower() == claim
    assert result["lead"] == rest.removeprefix(": ")
    assert result["title"] == result["h1"] == "net.onnx on Xeon Test 1, 2 cores + Test GPU"
    for name in ("date", "heteroplace", "machine", "other programs"):
        assert name in result["about"]
    predicted, measured, peer = result["bars"]
    assert predicted[:3] == ["predicted", "Predicted", "3.44 ms"]
    assert measured[:3] == ["measured", "Measured", "3.78 ms"]
    assert peer[:3] == ["peer", "onnxruntime 1.32.0, measured", "11.4 ms"]
    assert peer[3] == 100
    assert measured[3] == pytest.approx(100 / 3, abs=0.1)
    assert "Measured: 3.00x as fast as onnxruntime 1.32.0." in result["lines"]


@pytest.mark.costly
def test_a_speedup_over_rounds_is_the_one_that_the_run_printed(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    solution = two_branch_solution()
    measured = measured_run(solution)
    peers = (replace(measured.peers[0], speedup=1.95),)
    write_report(solution, path, measured=replace(measured, peers=peers))
    lines = see(path, BARS).found["lines"]
    assert "Measured: 1.95x as fast as onnxruntime 1.32.0 (median over the rounds)." in lines


@pytest.mark.costly
def test_a_time_that_is_unknown_has_no_bar_and_a_line_says_how_to_get_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_report(two_branch_solution(), path)
    result = see(path, BARS).found
    assert [bar[1] for bar in result["bars"]] == ["Predicted"]
    measured, peer = result["lines"]
    assert measured == "Measured time: unknown. heteroplace report MODEL --measure 21 measures it."
    assert peer.startswith("onnxruntime: not compared. heteroplace run MODEL.onnx --compare")


@pytest.mark.costly
def test_op_types_have_time_speed_and_share_of_the_peak(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    solution = write_full_page(path)
    result = see(path, OPS).found
    assert result["heads"] == ["op type", "tasks", "time", "share", "GFLOP/s", "of peak"]
    conv, copy, add = result["rows"]
    assert (conv[0], conv[1]) == ("nn.conv2d", "11")
    assert copy[:2] == ["copy", str(len(solution.plan.copies))]
    assert copy[4:] == ["-", "-"]
    timeline = measured_run(solution).timeline
    assert timeline is not None
    tasks = {step: one.task for step, one in enumerate(solution.plan.steps) if hasattr(one, "task")}
    convs = [span for span in timeline.spans if tasks.get(span.step, 11) != 11]
    ns = sum(span.finish_ns - span.start_ns for span in convs)
    flops = sum(task.flops for task in solution.graph.tasks[:11])
    assert conv[2] == format_ns(ns)
    assert float(conv[4]) == pytest.approx(flops / ns, rel=0.01)
    peaks = {"cpu.0": 1000, "gpu0": 4000}
    possible = sum((s.finish_ns - s.start_ns) * peaks[s.resource] for s in convs)
    assert float(conv[5].split()[0]) == pytest.approx(100 * flops / possible, abs=0.6)
    assert add[0] == "add"
    assert result["lines"] == ["Peak: cpu.0 1000 GFLOP/s, gpu0 4000 GFLOP/s."]


@pytest.mark.costly
def test_without_a_peak_the_column_is_left_out_and_a_line_says_why(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_report(two_branch_solution(has_peaks=False), path)
    result = see(path, OPS).found
    assert result["heads"] == ["op type", "tasks", "time", "share", "GFLOP/s"]
    (line,) = result["lines"]
    assert line.startswith("The share of the peak is left out, because the peak of")
    assert "cpu.0" in line and "gpu0" in line and "--measure 21" in line


@pytest.mark.costly
def test_tooltips_have_layer_op_shapes_device_times_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    solution = write_full_page(path)
    predicted, measured = see(path, TIPS).found
    names = [task.name for task in solution.graph.tasks]
    task = names.index("conv2d.6")
    step = next(i for i, one in enumerate(solution.plan.steps) if getattr(one, "task", -1) == task)
    start, finish = solution.timeline.step_times[step]
    tip = next(text for text in predicted if "task conv2d.6\n" in text).split("\n")
    assert tip[0] == "layer branch0/block4/conv"
    assert tip[2:4] == ["nn.conv2d+nn.relu", "float32 [1,64,56,56] → float32 [1,64,56,56]"]
    times = [format_ns(ns) for ns in (start, finish, finish - start)]
    assert tip[4] == f"gpu0: {times[0]} to {times[1]}, {times[2]} (predicted)"
    assert tip[5].startswith("measured: ")
    copy = next(text for text in measured if "copy of " in text).split("\n")
    assert copy[0].endswith("ram → vram") or copy[0].endswith("vram → ram")
    assert copy[1:3] == ["copy of 784 KiB", "float32 [1,64,56,56]"]
    assert copy[3].startswith("pcie.")


@pytest.mark.costly
def test_buttons_show_what_was_predicted_for_other_devices(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    solution = write_full_page(path)
    seen = see(path, WHAT_IF)
    assert seen.console == ()
    result = seen.found
    assert result["intro"].startswith("These are predictions: ")
    assert result["intro"].endswith("Nothing was measured.")
    assert result["role"] == "status"
    assert result["pressed"] == ["false", "false", "false", "true"]
    expected = alternatives(solution)
    assert list(result["answers"]) == [one.label for one in expected]
    for one in expected:
        claim, bars, text = result["answers"][one.label]
        assert one.objective_ns is not None
        now, then = format_ns(solution.objective_ns), format_ns(one.objective_ns)
        assert claim.startswith(f"Predicted {one.label}: {then} instead of {now}, ")
        assert bars == [now, then]
        assert f"The new plan uses {', '.join(one.devices)}." in text
        side = "longer" if one.objective_ns > solution.objective_ns else "shorter"
        assert claim.endswith(f"{side}.")


def test_a_failed_alternative_keeps_its_reason() -> None:
    solution = two_branch_solution()
    graph = solution.graph
    pinned = replace(graph, tasks=(replace(graph.tasks[0], devices=("gpu0",)), *graph.tasks[1:]))
    content = report_content(replace(solution, graph=pinned), None, (), (), {}, "")
    (without,) = (one for one in content.alternatives if one.label == "without gpu0")
    assert without.objective_ns is None
    assert without.reason


@pytest.mark.costly
def test_the_timeline_is_saved_as_svg_and_as_png(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_full_page(path)
    seen = see(path, PICTURES)
    assert seen.console == ()
    result = seen.found
    assert result["names"] == ["two-branches-timeline.svg", "two-branches-timeline.png"]
    assert result["types"] == ["image/svg+xml", "image/png"]
    assert "var(" not in result["svg"]
    root = ElementTree.fromstring(result["svg"])
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "net.onnx on Xeon Test 1, 2 cores + Test GPU"
    assert "Predicted, simulated without interference: 3.44 ms" in texts
    assert "Measured, one run: 3.78 ms" in texts
    assert texts.count("conv2d.10") == 2
    ids = [node.get("id") for node in root.iter() if node.get("id")]
    assert len(set(ids)) == len(ids)
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(base64.b64decode(result["png"])))
    assert image.size == (2 * int(root.get("width", 0)), 2 * int(root.get("height", 0)))
    assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 20
