"""A solution -> HTML for a notebook: headline, timeline, and tables of devices and tasks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from heteroplace.model.plan import Collective, Run, devices_of
from heteroplace.model.solution import Solution
from heteroplace.model.step_values import is_async
from heteroplace.model.units import format_bytes, format_ns
from heteroplace.questions.pictures import solution_title
from heteroplace.report.headline import solution_headline
from heteroplace.report.lanes import timeline_lanes
from heteroplace.report.lanes_svg import lanes_svg
from heteroplace.report.layer_column import layer_label, without_empty_layers
from heteroplace.report.tables import cost_sources_line
from heteroplace.terminal import printable

_LONGEST = 10


def html(solution: Solution) -> str:
    """Return what a notebook shows of a solution; it has no scripts and no styles of its own."""
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    timeline = solution.timeline
    placement = plan.devices_of_tasks(len(graph.tasks))
    taken = [0] * len(graph.tasks)
    busy, counts = [0] * len(cluster.devices), [0] * len(cluster.devices)
    for index, step in enumerate(plan.steps):
        if isinstance(step, (Run, Collective)) and index in timeline.step_times:
            start, finish = timeline.step_times[index]
            taken[step.task] += finish - start
            is_free = isinstance(step, Collective) and is_async(graph, cluster, step)
            for device in devices_of(step):
                counts[device] += 1
                busy[device] += 0 if is_free else finish - start
    devices = []
    for index, owner in enumerate(cluster.devices):
        memory, peak = cluster.memories[owner.memory], timeline.peak_bytes[owner.memory]
        used = f"{format_bytes(peak)} of {format_bytes(memory.bytes)}"
        devices.append([owner.name, str(counts[index]), format_ns(busy[index]), memory.name, used])
    longest = sorted(range(len(taken)), key=lambda task: (-taken[task], task))[:_LONGEST]
    tasks = [
        [
            graph.tasks[task].name,
            layer_label([graph.tasks[task]]),
            graph.tasks[task].op,
            "+".join(cluster.devices[device].name for device in placement[task]),
            format_ns(taken[task]),
            plan.reasons[task] if plan.reasons else "",
        ]
        for task in longest
    ]
    heads = ["longest tasks", "layer", "op", "device", "time", "reason"]
    return (
        f"<p><b>{html_text(solution_headline(solution))}</b></p>"
        f"<p>{html_text(cost_sources_line(solution.costs))}</p>"
        + lanes_svg(timeline_lanes(timeline, solution_title(solution), solution))
        + html_table(["device", "tasks", "busy", "memory", "used at most"], devices)
        + html_table(*without_empty_layers(heads, tasks, "<" * len(heads))[:2])
    )


def html_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text as a table; nothing in them is taken for HTML."""
    head = "".join(f"<th>{html_text(cell)}</th>" for cell in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{html_text(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_text(text: str) -> str:
    """Return text of any origin as HTML that shows it."""
    return escape(printable(text))
