"""Turn plans and timelines into text tables for a terminal. Pure functions, aligned columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import PREDICTED, SOURCES_WITH_TIME, CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory_use.memory import MemoryUse
from heteroplace.model.plan import Collective, Copy, Load, Plan, Run, devices_of
from heteroplace.model.step_values import channels_of, collective_bytes, is_async, moved_bytes
from heteroplace.model.timeline import Timeline
from heteroplace.model.trace import QueueUse
from heteroplace.model.units import format_bytes, format_ns
from heteroplace.report.layer_column import layer_label, without_empty_layers
from heteroplace.stats import counted_median
from heteroplace.terminal import printable

MAX_ROWS = 40
_MAX_CELL = 48
_TASK_HEADS = ("task", "layer", "op", "device", "start", "time", "reason")


@dataclass(frozen=True)
class Candidate:
    """One plan that was considered."""

    name: str
    """What made it, e.g. "cpu.all only" or "heft"."""
    objective_ns: int | None
    """Its makespan, or its time per item, whichever was asked for; None: there is no such plan."""
    note: str = ""
    """Why there is none, or what is special about it."""


def format_table(headers: Sequence[str], rows: Sequence[Sequence[str]], align: str = "") -> str:
    """Return a table with a header line and columns two blanks apart.

    Parameters
    ----------
    headers : sequence of str
    rows : sequence of sequence of str
        Each as long as `headers`.
    align : str
        "<" or ">" per column; by default all are "<".

    Long cells are cut, except those of the last column.
    """
    align = align or "<" * len(headers)
    cells = [list(headers), *([*map(_cut, row[:-1]), row[-1]] for row in rows)]
    cells = [[printable(cell, allowed="") for cell in row] for row in cells]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    lines = []
    for row in cells:
        columns = zip(row, align, widths, strict=True)
        lines.append("  ".join(f"{cell:{side}{width}}" for cell, side, width in columns).rstrip())
    return "\n".join(lines)


def placement_table(
    graph: TaskGraph,
    cluster: Cluster,
    plan: Plan,
    timeline: Timeline,
    max_rows: int = MAX_ROWS,
    reason: Callable[[int], str] | None = None,
) -> str:
    """Return where each task runs, when and why: one row per task, in order of the graph.

    `reason` gives that of a task, asked of those only that are shown; None: the plan has them. If
    that is more than `max_rows` rows, neighbours on one device share a row, which has the
    earliest start, the sum of the times and the reason of the longest task. Rows that are still
    too many are left out, and the last line says how many tasks that are.
    """
    times = timeline.step_times
    span = {
        step.task: times[index]
        for index, step in enumerate(plan.steps)
        if isinstance(step, (Run, Collective)) and index in times
    }
    placement = plan.devices_of_tasks(len(graph.tasks))
    groups = _groups(placement, shared=len(graph.tasks) > max_rows)
    reason_of = reason or (lambda task: plan.reasons[task] if plan.reasons else "")
    rows = []
    for group in groups[:max_rows]:
        timed = [task for task in group if task in span]
        first, last = graph.tasks[group[0]], graph.tasks[group[-1]]
        devices = [cluster.devices[device].name for device in placement[group[0]]]
        longest = max(timed, key=lambda task: span[task][1] - span[task][0], default=group[0])
        rows.append(
            [
                first.name if len(group) == 1 else f"{first.name} .. {last.name} ({len(group)})",
                layer_label([graph.tasks[task] for task in group]),
                _commonest([graph.tasks[task].op for task in group]),
                "+".join(devices) or "-",
                format_ns(min(span[task][0] for task in timed)) if timed else "-",
                format_ns(sum(span[task][1] - span[task][0] for task in timed)) if timed else "-",
                reason_of(longest),
            ]
        )
    text = format_table(*without_empty_layers(_TASK_HEADS, rows, "<<<<>><"))
    left_out = sum(len(group) for group in groups[max_rows:])
    return f"{text}\n... and {left_out} more tasks" if left_out else text


def device_table(graph: TaskGraph, cluster: Cluster, plan: Plan, timeline: Timeline) -> str:
    """Return the load of each device: tasks, busy time, its share of the makespan, memory live
    at most."""
    times = timeline.step_times
    rows = []
    counts = [0] * len(cluster.devices)
    busy = [0] * len(cluster.devices)
    for index, step in enumerate(plan.steps):
        start, finish = times.get(index, (0, 0))
        is_free = isinstance(step, Collective) and is_async(graph, cluster, step)
        for device in devices_of(step):
            counts[device] += 1
            busy[device] += 0 if is_free else finish - start
    for owner, count, busy_ns in zip(cluster.devices, counts, busy, strict=True):
        memory = cluster.memories[owner.memory]
        used = format_bytes(timeline.peak_bytes[owner.memory]) if timeline.peak_bytes else "?"
        rows.append(
            [
                owner.name,
                str(count),
                format_ns(busy_ns),
                _share(busy_ns, timeline.makespan_ns),
                memory.name,
                f"{used} / {format_bytes(memory.bytes)}",
            ]
        )
    headers = ["device", "tasks", "busy", "share", "memory", "used / limit"]
    return format_table(headers, rows, "<>>><>")


def memory_text(
    cluster: Cluster,
    predicted: Sequence[MemoryUse],
    measured: Mapping[str, MemoryUse] | None = None,
) -> str:
    """Return what a compiled program holds, a line for each memory in use.

    Parameters
    ----------
    predicted
        For each memory of the cluster.
    measured
        What an executor holds, by name of the memory; None: nothing has run.
    """
    lines = []
    for memory, use in zip(cluster.memories, predicted, strict=True):
        if not use.total_bytes:
            continue
        parts = ", ".join(
            f"{name} {format_bytes(num_bytes)}"
            for name, num_bytes in (
                ("weights", use.weights_bytes),
                ("values", use.values_bytes),
                ("scratch", use.workspace_bytes),
            )
        )
        line = f"memory {memory.name}: predicted {format_bytes(use.total_bytes)} ({parts})"
        measured_bytes = None if measured is None else measured.get(memory.name)
        if measured_bytes is not None:
            line += f", measured {format_bytes(measured_bytes.total_bytes)}"
        lines.append(line)
    return "\n".join(lines)


def channel_table(graph: TaskGraph, cluster: Cluster, plan: Plan, timeline: Timeline) -> str:
    """Return the load of each channel that is used; "" if nothing is copied.

    Of what guarded copies move the most that it can be is told. A collective counts as one copy of
    its whole tensor on each channel of its ring, or to its root.
    """
    times = timeline.step_times
    of_channel: dict[str, _Traffic] = {}
    of_route: dict[tuple[int, ...], _Traffic] = {}
    for index, step in enumerate(plan.steps):
        if isinstance(step, (Copy, Load)):
            start, finish = times.get(index, (0, 0))
            traffic = of_route.setdefault(step.route, _Traffic())
            traffic.add(1, moved_bytes(graph, step), finish - start)
        elif isinstance(step, Collective):
            start, finish = times.get(index, (0, 0))
            for channel in channels_of(graph, cluster, step):
                traffic = of_channel.setdefault(channel, _Traffic())
                traffic.add(1, collective_bytes(graph, step), finish - start)
    for route, traffic in of_route.items():
        for channel in {cluster.links[link].channel for link in route}:
            of_channel.setdefault(channel, _Traffic()).add(
                traffic.copies, traffic.bytes, traffic.busy_ns
            )
    rows = []
    for channel in cluster.channels:
        if channel in of_channel:
            used = of_channel[channel]
            busy, share = format_ns(used.busy_ns), _share(used.busy_ns, timeline.makespan_ns)
            rows.append([channel, str(used.copies), format_bytes(used.bytes), busy, share])
    return (
        format_table(["channel", "copies", "data", "busy", "share"], rows, "<>>>>") if rows else ""
    )


@dataclass(slots=True)
class _Traffic:
    """What was copied over a route or a channel."""

    copies: int = 0
    bytes: int = 0
    busy_ns: int = 0

    def add(self, copies: int, num_bytes: int, busy_ns: int) -> None:
        self.copies += copies
        self.bytes += num_bytes
        self.busy_ns += busy_ns


def candidates_table(candidates: Sequence[Candidate]) -> str:
    """Return what was considered, best first (ties in the order given); of many the first."""
    best = min((c.objective_ns for c in candidates if c.objective_ns is not None), default=None)
    ranked = sorted(
        candidates, key=lambda c: (c.objective_ns is None, c.objective_ns if c.objective_ns else 0)
    )
    rows = []
    for candidate in ranked[:MAX_ROWS]:
        time, ratio = "-", "-"
        if candidate.objective_ns is not None and best is not None:
            time = format_ns(candidate.objective_ns)
            ratio = f"{candidate.objective_ns / best:.2f}x" if best else "-"
        rows.append([candidate.name, time, ratio, candidate.note])
    table = format_table(["candidate", "simulated", "of best", "note"], rows, "<>><")
    return table + (f"\n... and {rest} more" if (rest := len(ranked) - MAX_ROWS) > 0 else "")


def cost_sources_line(costs: CostTable) -> str:
    """Return one line: what share of a table's times was measured, and what was predicted how.

    E.g. "costs: 92 % measured, 8 % scaled (error about 14 %)", with the median of the expected
    errors of predicted times. What a device cannot run is not counted.
    """
    counts: Counter[int] = Counter()
    for details in costs.detail_ids:
        counts.update(dict(enumerate(np.bincount(details).tolist())))
    shares: Counter[str] = Counter()
    errors: dict[str, list[tuple[float, int]]] = {}
    for detail_id, count in counts.items():
        detail = costs.details[detail_id]
        shares[detail.source] += count
        if detail.source in PREDICTED and detail.error is not None:
            errors.setdefault(detail.source, []).append((detail.error, count))
    listed = [name for name in (*SOURCES_WITH_TIME, "unknown") if shares[name]]
    total = sum(shares[name] for name in listed)
    parts = []
    for name in listed:
        error = counted_median(errors.get(name, []))
        note = "" if error is None else f" (error about {100 * error:.0f} %)"
        if name in PREDICTED and error is None:
            note = " (error unknown)"
        parts.append(f"{_share(shares[name], total)} {name}{note}")
    return f"costs: {', '.join(parts) or 'none'}"


def _groups(placement: Sequence[tuple[int, ...]], shared: bool) -> list[list[int]]:
    groups: list[list[int]] = []
    for task, devices in enumerate(placement):
        if shared and groups and placement[groups[-1][0]] == devices:
            groups[-1].append(task)
        else:
            groups.append([task])
    return groups


def _commonest(texts: Sequence[str]) -> str:
    """The text that occurs most (ties: the first), with its share unless it is the only one."""
    text, count = Counter(texts).most_common(1)[0]
    return text if count == len(texts) else f"{text} ({count} of {len(texts)})"


def _share(part_ns: int, whole_ns: int) -> str:
    return f"{100 * part_ns / whole_ns:.0f} %" if whole_ns else "-"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CELL else text[: _MAX_CELL - 3] + "..."


def busy_table(uses: Sequence[QueueUse]) -> str:
    """Return for each queue of a recording the time and share that it was busy and waited."""
    rows = [
        [
            use.queue,
            format_ns(use.busy_ns),
            _share(use.busy_ns, use.wall_ns),
            format_ns(use.wait_ns),
            _share(use.wait_ns, use.wall_ns),
        ]
        for use in uses
    ]
    return format_table(["queue", "busy", "share", "waits", "share"], rows, "<>>>>")
