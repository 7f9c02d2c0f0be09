"""A value -> its `repr`: one line of at most 120 characters, whatever its names are."""

from __future__ import annotations

from heteroplace.model.cluster import Cluster
from heteroplace.model.plan import Collective, Copy, Load, Plan, Run
from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Timeline
from heteroplace.model.units import format_gap, format_ns
from heteroplace.terminal import printable

MAX_LENGTH = 120
_MAX_GRAPH, _MAX_CLUSTER, _MAX_DEVICES = 24, 16, 60
_MANY = 10


def solution_repr(solution: Solution, of_class: str = "Solution", note: str = "") -> str:
    """Return what a solution places, where, how fast that is, and how far from the best.

    Parameters
    ----------
    of_class
        The class that has the solution.
    note
        What comes first, such as "closed"; "": nothing.
    """
    names = _short(solution.graph.name, _MAX_GRAPH), _short(solution.cluster.name, _MAX_CLUSTER)
    parts = ["'{}' on {}".format(*names)]
    singles, time_ns = solution.predicted_singles, solution.expected_ns
    if solution.item_ns is None:
        parts.append(format_ns(time_ns))
    else:
        singles, time_ns = solution.singles, solution.item_ns
        parts.append(f"{format_ns(time_ns)} per item")
    best_ns = min((single_ns for _, single_ns in singles), default=0)
    if best_ns and time_ns:
        ratio = best_ns / time_ns
        text = f"{ratio:.2f}" if ratio < _MANY else f"{ratio:.0f}"
        parts.append(f"{text}x the best single device")
    if solution.bound_ns:
        gap = solution.gap_ratio
        parts.append(f"gap {format_gap(gap, 1 if gap else 0)}")
    if note:
        parts.insert(1, note)
    while len(text := f"<{of_class}: {', '.join(parts)}>") > MAX_LENGTH:
        parts.pop()
    return text


def cluster_repr(cluster: Cluster) -> str:
    """Return the name of a cluster and its devices."""
    names: list[str] = []
    for device in cluster.devices:
        if len(", ".join([*names, device.name])) > _MAX_DEVICES:
            break
        names.append(_short(device.name, _MAX_DEVICES))
    left_out = len(cluster.devices) - len(names)
    more = [f"{left_out} more"] if left_out else []
    name = _short(cluster.name, _MAX_CLUSTER)
    return f"<Cluster: '{name}' of {', '.join([*names, *more])}>"


def plan_repr(plan: Plan) -> str:
    """Return how many steps of each kind a plan has, and what made it."""
    kinds = (("run", Run), ("copy", Copy), ("collective", Collective), ("load", Load))
    counts = [(name, sum(isinstance(step, kind) for step in plan.steps)) for name, kind in kinds]
    steps = [_plural(count, name) for name, count in counts if count or name == "run"]
    items = [f"{plan.items} items"] if plan.items > 1 else []
    return f"<Plan: {', '.join([*steps, *items])}, by {_short(plan.origin, _MAX_DEVICES)}>"


def timeline_repr(timeline: Timeline) -> str:
    """Return how many steps a timeline has, where, and how long it is."""
    resources = len({span.resource for span in timeline.spans})
    steps = _plural(len(timeline.step_times), "step")
    return (
        f"<Timeline: {steps} on {_plural(resources, 'resource')}, "
        f"{format_ns(timeline.makespan_ns)}, {timeline.source}>"
    )


def _plural(count: int, name: str) -> str:
    if count == 1:
        return f"1 {name}"
    return f"{count} {'copies' if name == 'copy' else f'{name}s'}"


def _short(name: str, length: int) -> str:
    text = printable(name, "")
    return text if len(text) <= length else text[: length - 3] + "..."
