"""Write timelines in the Chrome trace-event format, which Perfetto and chrome://tracing show.

One process per run (e.g. predicted and measured), one thread per resource (devices, then
channels), arrows from the task that makes a tensor over its copies to the tasks that read them,
and one counter per memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heteroplace.files.output import json_text, write_text
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Copy, Plan, Run, Step
from heteroplace.model.step_values import collective_bytes, moved_bytes
from heteroplace.model.text.plan_text import step_name
from heteroplace.model.timeline import Timeline
from heteroplace.report.dependencies import data_pairs

Event = dict[str, object]


@dataclass(frozen=True)
class TraceRun:
    """One timeline to show."""

    label: str
    """Name of its process, e.g. "predicted"."""
    plan: Plan
    timeline: Timeline
    memory: tuple[tuple[tuple[int, int], ...], ...] = ()
    """For each memory the (time_ns, bytes in use from then on), ascending; empty: not known, and
    then only the peaks of the timeline are shown."""


def write_trace(
    path: str | os.PathLike[str], graph: TaskGraph, cluster: Cluster, runs: Sequence[TraceRun]
) -> None:
    """Write `runs` to `path` as one trace; open it at https://ui.perfetto.dev."""
    value = {"traceEvents": trace_events(graph, cluster, runs), "displayTimeUnit": "ns"}
    write_text(json_text(value), path)


def trace_events(graph: TaskGraph, cluster: Cluster, runs: Sequence[TraceRun]) -> list[Event]:
    """Return the events of `write_trace`: names first, then sorted by time.

    A measured step has its predicted time beside it if an earlier run is a simulation of the same
    plan.
    """
    names: list[Event] = []
    events: list[Event] = []
    for pid, run in enumerate(runs, start=1):
        thread = _thread_ids(cluster, run.timeline)
        names.append(_name_event("process_name", pid, 0, run.label))
        for resource, tid in thread.items():
            names.append(_name_event("thread_name", pid, tid, resource))
        predicted = _predicted_times(run, runs)
        for span in run.timeline.spans:
            step = run.plan.steps[span.step]
            args = _args(step, graph, cluster)
            if span.step in predicted:
                start, finish = predicted[span.step]
                args["predicted_us"] = (finish - start) / 1000
            events.append(
                {
                    "ph": "X",
                    "name": step_name(step, graph, cluster),
                    "cat": type(step).__name__.lower(),
                    "pid": pid,
                    "tid": thread[span.resource],
                    "ts": span.start_ns / 1000,
                    "dur": (span.finish_ns - span.start_ns) / 1000,
                    "args": args,
                }
            )
        events.extend(_arrows(pid, run, graph, cluster, thread))
        events.extend(_counters(pid, run, cluster))
    return names + sorted(events, key=lambda event: (event["ts"], event["pid"]))


def _thread_ids(cluster: Cluster, timeline: Timeline) -> dict[str, int]:
    """Rows in the order of the cluster: devices, channels, then whatever else the spans name."""
    resources = [device.name for device in cluster.devices]
    resources += [*cluster.channels, *(span.resource for span in timeline.spans)]
    used = {span.resource for span in timeline.spans}
    shown = [resource for resource in dict.fromkeys(resources) if resource in used]
    return {resource: index for index, resource in enumerate(shown, start=1)}


def _name_event(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _predicted_times(run: TraceRun, runs: Sequence[TraceRun]) -> Mapping[int, tuple[int, int]]:
    for other in runs:
        if other.timeline.source == "simulated" and other.plan == run.plan:
            return other.timeline.step_times
    return {}


def _args(step: Step, graph: TaskGraph, cluster: Cluster) -> Event:
    if isinstance(step, Run):
        task = graph.tasks[step.task]
        return {
            "task": task.name,
            "op": task.op,
            "device": cluster.devices[step.device].name,
            "members": list(task.members),
        }
    if isinstance(step, Collective):
        return {
            "task": graph.tasks[step.task].name,
            "op": graph.tasks[step.task].op,
            "devices": [cluster.devices[device].name for device in step.devices],
            "bytes": collective_bytes(graph, step),
        }
    moved: Event = (
        {"tensor": graph.tensors[step.tensor].name}
        if isinstance(step, Copy)
        else {"tasks": [graph.tasks[task].name for task in step.tasks]}
    )
    return moved | {
        "bytes": moved_bytes(graph, step),
        "route": [cluster.links[link].name for link in step.route],
    }


def _arrows(
    pid: int, run: TraceRun, graph: TaskGraph, cluster: Cluster, thread: dict[str, int]
) -> list[Event]:
    """An arrow for each (maker, copy or collective) and (copy or collective, reader of it)."""
    first_span = {span.step: span for span in reversed(run.timeline.spans)}
    events: list[Event] = []
    for number, (before, after) in enumerate(data_pairs(graph, cluster, run.plan)):
        if before not in first_span or after not in first_span:
            continue
        begin, end = first_span[before], first_span[after]
        common = {"name": "data", "cat": "data", "id": f"{pid}.{number}", "pid": pid}
        # The viewer ties an arrow to the slice around its time, so it starts just before the end.
        leaves_ns = max(begin.start_ns, begin.finish_ns - 1)
        events.append({**common, "ph": "s", "tid": thread[begin.resource], "ts": leaves_ns / 1000})
        events.append(
            {**common, "ph": "f", "bp": "e", "tid": thread[end.resource], "ts": end.start_ns / 1000}
        )
    return events


def _counters(pid: int, run: TraceRun, cluster: Cluster) -> list[Event]:
    events: list[Event] = []
    for index, memory in enumerate(cluster.memories):
        name = f"memory {memory.name}"
        points: tuple[tuple[int, int], ...] = ()
        if run.memory:
            points = run.memory[index]
        elif run.timeline.peak_bytes:
            name += " (peak)"
            points = ((0, run.timeline.peak_bytes[index]),)
        for time_ns, num_bytes in points:
            events.append(
                {
                    "ph": "C",
                    "name": name,
                    "pid": pid,
                    "tid": 0,
                    "ts": time_ns / 1000,
                    "args": {"bytes": num_bytes},
                }
            )
    return events
