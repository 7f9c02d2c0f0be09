"""A solution -> a JSON document that needs no other file: devices, tasks with their times, layers.

The form is described in `docs/guide/export.md`. Version 1 may gain keys; none changes its meaning.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from heteroplace.model.demands import layers_of
from heteroplace.model.implementations import base_names
from heteroplace.model.plan import Collective, Copy, Run, devices_of
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.export_format import ExportedPlacement, ExportFormat

PLACEMENT_VERSION = 1
"""Version of the form."""


def write_json(solution: Solution, model: Path | None = None) -> ExportedPlacement:
    """Return the placement as JSON; the model is not read."""
    return ExportedPlacement(json.dumps(placement_json(solution), indent=1) + "\n")


def placement_json(solution: Solution) -> dict[str, Any]:
    """Return the placement as values of JSON."""
    graph, cluster = solution.graph, solution.cluster
    names = base_names(cluster)
    times = solution.timeline.step_times
    runs: list[list[dict[str, Any]]] = [[] for _ in graph.tasks]
    copies = []
    for index, step in enumerate(solution.plan.steps):
        start_ns, finish_ns = times.get(index, (None, None))
        span = {"start_ns": start_ns, "finish_ns": finish_ns}
        if isinstance(step, (Run, Collective)):
            runs[step.task] += [{"device": names[device], **span} for device in devices_of(step)]
        elif isinstance(step, Copy):
            copies.append(
                {
                    "tensor": graph.tensors[step.tensor].name,
                    "from": cluster.memories[step.src].name,
                    "to": cluster.memories[step.dst].name,
                    **span,
                }
            )
    tasks = [
        {
            "name": task.name,
            "op": task.op,
            "layers": list(layers_of(task)),
            "weight_bytes": task.weight_bytes,
            "runs": own,
        }
        for task, own in zip(graph.tasks, runs, strict=True)
    ]
    return {
        "heteroplace_placement": PLACEMENT_VERSION,
        "network": graph.name,
        "predicted_ns": solution.expected_ns,
        "devices": _devices(solution),
        "tasks": tasks,
        "copies": copies,
        "layers": solution.layers(),
    }


def _devices(solution: Solution) -> list[dict[str, Any]]:
    cluster = solution.cluster
    names = dict.fromkeys(base_names(cluster))
    return [
        {
            "name": device.name,
            "kind": device.kind,
            "index": device.index,
            "host": device.host,
            "memory": cluster.memories[device.memory].name,
        }
        for device in cluster.devices
        if device.name in names
    ]


JSON = ExportFormat(write_json)
