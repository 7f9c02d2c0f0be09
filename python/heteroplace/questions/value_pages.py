"""A cluster, a plan, a timeline or a compiled network -> HTML for a notebook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from heteroplace.model.cluster import Cluster
from heteroplace.model.plan import Copy, Load, Plan, devices_of
from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Timeline
from heteroplace.model.units import format_bytes, format_ns
from heteroplace.questions.notebook import html, html_table, html_text
from heteroplace.questions.pictures import timeline_title
from heteroplace.report.lanes import timeline_lanes
from heteroplace.report.lanes_svg import lanes_svg

Port = tuple[str, tuple[int, ...], str]
_MAX_ROWS = 40


def cluster_html(cluster: Cluster) -> str:
    """Return the devices, memories and links of a cluster as tables."""
    memories = cluster.memories
    devices = [
        [device.name, device.kind, device.target, memories[device.memory].name]
        for device in cluster.devices
    ]
    spaces = [[memory.name, format_bytes(memory.bytes)] for memory in memories]
    links = [
        [
            f"{memories[link.src].name} to {memories[link.dst].name}",
            f"{format_bytes(link.bytes_per_second)}/s",
            format_ns(link.latency_ns),
        ]
        for link in cluster.links
    ]
    return (
        f"<p><b>{html_text(repr(cluster)[1:-1])}</b></p>"
        + _cut_table(["device", "kind", "target", "memory"], devices)
        + _cut_table(["memory", "size"], spaces)
        + (_cut_table(["link", "bandwidth", "latency"], links) if links else "")
    )


def plan_html(plan: Plan) -> str:
    """Return how many steps each device and each pair of memories has; a plan has ids alone."""
    runs = Counter(device for step in plan.steps for device in devices_of(step))
    moves = Counter((step.src, step.dst) for step in plan.steps if isinstance(step, (Copy, Load)))
    rows = [[f"device {device}", f"{count} runs"] for device, count in sorted(runs.items())]
    rows += [
        [f"memory {src} to {dst}", f"{count} copies"] for (src, dst), count in sorted(moves.items())
    ]
    return f"<p><b>{html_text(repr(plan)[1:-1])}</b></p>" + _cut_table(["where", "steps"], rows)


def timeline_html(timeline: Timeline) -> str:
    """Return a timeline as a picture; its steps have numbers, as it does not know the plan."""
    title = timeline_title(timeline)
    picture = lanes_svg(timeline_lanes(timeline, title))
    return f"<p><b>{html_text(repr(timeline)[1:-1])}</b></p>{picture}"


def program_html(
    solution: Solution, head: str, inputs: Sequence[Port], outputs: Sequence[Port]
) -> str:
    """Return the ports of a compiled network as a table, and its plan below.

    Parameters
    ----------
    head
        The `repr` of what has the program.
    inputs, outputs
        Name, shape and type of each.
    """
    rows = [
        [kind, name, "x".join(map(str, shape)) or "scalar", dtype]
        for kind, ports in (("input", inputs), ("output", outputs))
        for name, shape, dtype in ports
    ]
    table = _cut_table(["", "name", "shape", "type"], rows)
    return f"<p>{html_text(head[1:-1])}</p>{table}{html(solution)}"


def _cut_table(heads: list[str], rows: list[list[str]]) -> str:
    """A table of the first rows, and how many more there are."""
    more = len(rows) - _MAX_ROWS
    note = f"<p>... and {more} more</p>" if more > 0 else ""
    return html_table(heads, rows[:_MAX_ROWS]) + note
