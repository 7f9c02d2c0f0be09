"""A solution -> a graph in Graphviz' language: a node for each task, coloured by its device."""

from __future__ import annotations

from pathlib import Path

from heteroplace.model.implementations import base_names
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.export_format import ExportedPlacement, ExportFormat

# ColorBrewer's Set3, which black text is readable on.
_COLOURS = (
    *("#8dd3c7", "#ffffb3", "#bebada", "#fb8072", "#80b1d3", "#fdb462"),
    *("#b3de69", "#fccde5", "#d9d9d9", "#bc80bd", "#ccebc5", "#ffed6f"),
)


def write_dot(solution: Solution, model: Path | None = None) -> ExportedPlacement:
    """Return the task graph with its devices; the model is not read."""
    graph, cluster = solution.graph, solution.cluster
    names = base_names(cluster)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    placed = solution.plan.devices_of_tasks(len(graph.tasks))
    lines = [f"digraph {_quoted(graph.name)} {{", "  node [shape=box, style=filled];"]
    for index, task in enumerate(graph.tasks):
        devices = list(dict.fromkeys(names[device] for device in placed[index]))
        colour = _COLOURS[numbers[devices[0]] % len(_COLOURS)] if devices else "#ffffff"
        label = _quoted(f"{task.name}\n{'+'.join(devices) or 'not run'}")
        lines.append(f'  t{index} [label={label}, fillcolor="{colour}"];')
    for tensor in graph.tensors:
        if tensor.producer is not None:
            label = _quoted(f"{tensor.bytes} B")
            for consumer in tensor.consumers:
                lines.append(f"  t{tensor.producer} -> t{consumer} [label={label}];")
    return ExportedPlacement("\n".join([*lines, "}"]) + "\n")


def _quoted(text: str) -> str:
    """Return a text as a string of the language, where a backslash starts an escape."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


DOT = ExportFormat(write_dot)
