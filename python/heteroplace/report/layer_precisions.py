"""A solution whose layers were chosen for bfloat16 -> a line, a table and JSON that say which."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from heteroplace.model.demands import layers_of
from heteroplace.model.implementations import implementation_gains
from heteroplace.model.solution import Solution
from heteroplace.model.units import format_ns
from heteroplace.model.verification import TOO_FAR_OFF, LayerPrecision
from heteroplace.report.layer_column import layer_label, without_empty_layers
from heteroplace.report.tables import format_table
from heteroplace.terminal import listed

_HEADS = ("task", "layer", "multiplies in", "why", "error", "with", "float32", "bf16")
_MAX_NAMES = 3


def precision_line(solution: Solution) -> str:
    """Return how many tasks are in bfloat16, what that does to outputs, and why others are not, as
    one line; "": nothing was chosen."""
    choice = solution.precision_choice
    if choice is None:
        return ""
    text = f"precision: {choice.num_bf16} of {len(choice.layers)} tasks that may be in bfloat16 are"
    if choice.error is not None:
        text += (
            f", which moves outputs by {choice.error:.2g} of their largest value "
            f"(max_error={choice.max_error:g})"
        )
    counts = Counter(layer.reason for layer in choice.layers if layer.reason)
    reasons = [f"{count} {reason}" for reason, count in counts.most_common()]
    if reasons:
        text += f"; in float32: {', '.join(reasons)}"
    layers = _layers_of_tasks(solution)
    furthest = sorted(
        (each for each in choice.layers if each.reason == TOO_FAR_OFF),
        key=lambda each: -(each.error or 0.0),
    )
    if furthest:
        names = [f"{layers[each.task] or each.task} {_error(each)}" for each in furthest]
        text += f" ({listed(names, at_most=_MAX_NAMES)})"
    return text


def precision_table(solution: Solution) -> str:
    """Return a row for each task that may be in bfloat16; "": nothing was chosen.

    The error is that of outputs with this task, and others as the column "with" says, in bfloat16.
    """
    choice = solution.precision_choice
    if choice is None:
        return ""
    layers = _layers_of_tasks(solution)
    rows = [
        [
            each.task,
            layers[each.task],
            each.precision,
            each.reason,
            _error(each),
            _others(each),
            *("-" if ns is None else format_ns(ns) for ns in (each.float32_ns, each.bf16_ns)),
        ]
        for each in choice.layers
    ]
    return format_table(*without_empty_layers(_HEADS, rows, "<<<<><>>"))


def precision_json(solution: Solution) -> dict[str, object]:
    """Return the choice with the layers of each task, or None, and what bfloat16 and other kernels
    gain by device."""
    choice = solution.precision_choice
    gains = implementation_gains(solution.cluster, solution.costs, solution.plan)
    value = None if choice is None else asdict(choice)
    if value is not None:
        of_task = {task.name: list(layers_of(task)) for task in solution.graph.tasks}
        for layer in value["layers"]:
            layer["layers"] = of_task[layer["task"]]
    return {
        "precision_choice": value,
        "kernel_gains": {
            name: {"tasks": num_tasks, "gain_ns": gain_ns}
            for name, (num_tasks, gain_ns) in gains.items()
        },
    }


def _layers_of_tasks(solution: Solution) -> dict[str, str]:
    return {task.name: layer_label([task]) for task in solution.graph.tasks}


def _error(layer: LayerPrecision) -> str:
    if not layer.together:
        return "-"
    return "no number" if layer.error is None else f"{layer.error:.2g}"


def _others(layer: LayerPrecision) -> str:
    """Which tasks were in bfloat16 when the error was measured."""
    if not layer.together:
        return "-"
    return "alone" if layer.together == 1 else f"{layer.together - 1} others"
