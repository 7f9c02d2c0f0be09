"""Draw `docs/plan.png` for the README: the verdict and both timelines of a real run.

python -m docs.draw_plan                  # a randomly wired network on this machine
python -m docs.draw_plan model.onnx -o plan.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import numpy as np
import onnx
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import heteroplace
from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Timeline
from heteroplace.model.units import format_ns
from heteroplace.report.headline import solution_headline
from heteroplace.report.lanes import timeline_lanes
from zoo.models.wired import wired_onnx

_RUNS, _RECORDED = 200, 21
_DEFAULT = Path(__file__).with_name("plan.png")
_BLUE, _ORANGE = "#3b6fb6", "#d98032"


def main() -> None:
    """Compile and run a model, and draw it."""
    parser = argparse.ArgumentParser(prog="python -m docs.draw_plan", description=__doc__)
    parser.add_argument("model", nargs="?", help="an ONNX file; default: a randomly wired network")
    parser.add_argument("-o", "--output", type=Path, default=_DEFAULT, help=f"default: {_DEFAULT}")
    arguments = parser.parse_args()
    model = wired_onnx() if arguments.model is None else onnx.load(arguments.model)
    executable = heteroplace.compile(model)
    executor = heteroplace.Executor(executable)
    inputs = {name: np.ones(shape, dtype) for name, shape, dtype in executor.inputs}
    executor.run(inputs)
    median_ns = int(np.median(executor.benchmark(_RUNS)))
    with executor.trace() as trace:
        for _ in range(_RECORDED):
            executor.run(inputs)
    timelines = [trace.timeline(call) for call in range(_RECORDED)]
    timelines.sort(key=lambda timeline: timeline.makespan_ns)
    matplotlib.use("agg")
    draw(executable.solution, timelines[_RECORDED // 2], median_ns).savefig(
        arguments.output, dpi=150
    )
    print(solution_headline(executable.solution))
    print(f"measured {format_ns(median_ns)}; drawn: {arguments.output}")


def draw(solution: Solution, measured: Timeline, median_ns: int) -> Figure:
    """Return the picture.

    Parameters
    ----------
    measured
        The timeline of a run, the middle one of some.
    median_ns
        The median time of many runs.
    """
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    verdict, _, limit = solution_headline(solution).partition(" (")
    title, _, times = verdict.partition(": ")
    figure.suptitle(title[0].upper() + title[1:], fontsize=17, fontweight="bold", x=0.01, ha="left")
    above, below = figure.subplots(2, 1, sharex=True)
    _draw_lanes(above, solution, solution.timeline, _BLUE)
    above.set_title(f"predicted: {times or verdict} ({limit}", loc="left", fontsize=10)
    _draw_lanes(below, solution, measured, _ORANGE)
    text = f"measured: one run; the median of {_RUNS} is {format_ns(median_ns)}"
    below.set_title(text, loc="left", fontsize=10)
    below.set_xlabel("ms")
    return figure


def _draw_lanes(axes: Axes, solution: Solution, timeline: Timeline, colour: str) -> None:
    """Draw a row for each device and channel."""
    lanes = timeline_lanes(timeline, "", solution).lanes
    for row, lane in enumerate(lanes):
        bars = [(bar.start_ns / 1e6, (bar.finish_ns - bar.start_ns) / 1e6) for bar in lane.bars]
        style = {"facecolors": colour, "edgecolor": "white", "linewidth": 0.5}
        axes.broken_barh(bars, (row - 0.4, 0.8), **style)
    axes.set_yticks(range(len(lanes)), [lane.name for lane in lanes])
    axes.invert_yaxis()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


if __name__ == "__main__":
    main()
