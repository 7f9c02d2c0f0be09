"""A solution -> predictions for its network on one device fewer and on one device more.

Each one is `Solution.what_if` with a new plan, as `heteroplace simulate --solve` makes it, for the
buttons of the report.
"""

from __future__ import annotations

from heteroplace.errors import HeteroPlaceError
from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.graph import TaskGraph
from heteroplace.model.implementations import base_names, base_of
from heteroplace.model.memory_use.shared_values import first_shared
from heteroplace.model.solution import Solution
from heteroplace.report.html.content import Alternative
from heteroplace.solve.problem import SolveOptions

MAX_TASKS = 500
"""A page of a larger graph would take over ten seconds to write."""
_MAX_FEWER, _MAX_MORE = 4, 2
_OPTIONS = SolveOptions(iterations=100, time_limit_s=2.0)


def why_no_alternatives(graph: TaskGraph) -> str:
    """Return why `alternatives` would take too long or find nothing, as sentences; "": neither."""
    if len(graph.tasks) > MAX_TASKS:
        return (
            f"The network has {len(graph.tasks):,} tasks, more than {MAX_TASKS:,}. "
            f"`heteroplace simulate PLAN --drop-device NAME --solve` predicts a change."
        )
    shared = first_shared(graph)
    if shared:
        return (
            f"The plan is an explicit schedule, because the graph has the {shared}. No solver "
            f"places it on other devices; `heteroplace shard` makes a schedule for another cluster."
        )
    return ""


def alternatives(solution: Solution) -> tuple[Alternative, ...]:
    """Return predictions without each device that the plan uses, and with one more of each kind.

    At most 4 of the first and 2 of the second. A device is added and dropped with its twins.
    """
    cluster = solution.cluster
    names = base_names(cluster)
    used = [cluster.device_id(name) for name in solution.devices_used]
    bases = [index for index in range(len(cluster.devices)) if base_of(cluster, index) is None]
    fewer = list(dict.fromkeys(names[device] for device in used)) if len(bases) > 1 else []
    more: dict[tuple[object, ...], Device] = {}
    for index in sorted(bases, key=lambda index: (index not in used, index)):
        device = cluster.devices[index]
        more.setdefault((device.kind, device.model, len(device.cores)), device)
    return (
        *(_without(solution, name) for name in fewer[:_MAX_FEWER]),
        *(_with_one_more(solution, device) for device in list(more.values())[:_MAX_MORE]),
    )


def _without(solution: Solution, name: str) -> Alternative:
    return _alternative(solution, f"without {name}", drop=(name,), add={})


def _with_one_more(solution: Solution, device: Device) -> Alternative:
    new_name = _free_name(solution.cluster, device.name)
    return _alternative(
        solution, f"with one more like {device.name}", drop=(), add={new_name: device.name}
    )


def _free_name(cluster: Cluster, name: str) -> str:
    """The first name like that of a device that nothing in the cluster has."""
    stem = name.rstrip("0123456789")
    taken = {device.name for device in cluster.devices} | {m.name for m in cluster.memories}
    number = 0
    while f"{stem}{number}" in taken:
        number += 1
    return f"{stem}{number}"


def _alternative(
    solution: Solution, label: str, *, drop: tuple[str, ...], add: dict[str, str]
) -> Alternative:
    try:
        answer = solution.what_if(add_device=add, drop_device=drop, solve=True, options=_OPTIONS)
    except HeteroPlaceError as err:
        return Alternative(label, (), None, reason=" ".join(str(err).split()))
    placed = answer.solution
    assert placed is not None
    if answer.same_ns is not None and answer.same_ns <= placed.objective_ns:
        # The plan as it is needs nothing of what changed, and the short search found none better.
        return Alternative(label, answer.changes, answer.same_ns, solution.devices_used)
    return Alternative(label, answer.changes, placed.objective_ns, placed.devices_used)
