"""Read and write plans as JSON. Steps name tasks, devices, tensors, memories and links.

Whether a plan is valid is not asked here (that is `check_plan`), only whether its names exist.
"""

from __future__ import annotations

import os

from heteroplace.errors import PlanError
from heteroplace.files.reader import (
    Faults,
    ObjectReader,
    a_count,
    a_name,
    a_text,
    list_of,
    read_json,
    schema_version,
    write_json,
)
from heteroplace.model.cluster import Cluster
from heteroplace.model.digests import digest_mismatches
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Plan, Run, Step

SCHEMA_VERSION = 1


def save_plan(plan: Plan, graph: TaskGraph, cluster: Cluster, path: str | os.PathLike[str]) -> None:
    """Write `plan` to `path` so that `load_plan` returns an equal one; atomic.

    Raises
    ------
    PlanError
        The plan belongs to another graph or cluster.
    """
    _check_digests(plan.graph_digest, plan.cluster_digest, graph, cluster, "the plan")
    write_json(plan_to_json(plan, graph, cluster), path)


def load_plan(path: str | os.PathLike[str], graph: TaskGraph, cluster: Cluster) -> Plan:
    """Return the plan in a file.

    Raises
    ------
    PlanError
        The file cannot be read, belongs to another graph or cluster, or has faults (all are named,
        with their JSON paths).
    """
    return plan_from_json(read_json(path, PlanError), graph, cluster, os.fspath(path))


def plan_to_json(plan: Plan, graph: TaskGraph, cluster: Cluster) -> dict[str, object]:
    """Return `plan` as a value for `json.dump`."""
    value: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "graph": graph.name,
        "graph_digest": plan.graph_digest,
        "cluster": cluster.name,
        "cluster_digest": plan.cluster_digest,
        "origin": plan.origin,
    }
    if plan.items != 1:
        value["items"] = plan.items
    value["steps"] = [_step_to_json(step, graph, cluster, plan.items) for step in plan.steps]
    if plan.reasons:
        value["reasons"] = list(plan.reasons)
    return value


def plan_from_json(value: object, graph: TaskGraph, cluster: Cluster, source: str = "plan") -> Plan:
    """Return the plan that a parsed JSON value describes; raises as `load_plan`."""
    faults = Faults(source, PlanError)
    root = ObjectReader(value, "$", faults)
    schema_version(root, SCHEMA_VERSION)
    root.optional("graph", a_text, "")
    root.optional("cluster", a_text, "")
    graph_digest = root.required("graph_digest", a_text, "")
    cluster_digest = root.required("cluster_digest", a_text, "")
    origin = root.required("origin", a_text, "")
    reasons = root.optional("reasons", list_of(a_text, "a list of texts"), ())
    items = root.optional("items", a_count, 1)
    readers = root.objects("steps", is_required=True)
    root.finish()
    faults.check()
    # Before the steps are read: those of another graph would only give a heap of unknown names.
    _check_digests(graph_digest, cluster_digest, graph, cluster, source)
    if reasons and len(reasons) != len(graph.tasks):
        faults.add(
            "$.reasons", f"has {len(reasons)} texts; expected one per task: {len(graph.tasks)}"
        )
    names = _Names(graph, cluster, items)
    steps = tuple(names.read_step(reader) for reader in readers)
    faults.check()
    return Plan(graph_digest, cluster_digest, steps, origin, reasons, items)


class _Names:
    """Ids of everything that a step may name."""

    def __init__(self, graph: TaskGraph, cluster: Cluster, num_items: int) -> None:
        self._num_items = num_items
        self._ids = {
            "task": {task.name: index for index, task in enumerate(graph.tasks)},
            "tensor": {tensor.name: index for index, tensor in enumerate(graph.tensors)},
            "device": {device.name: index for index, device in enumerate(cluster.devices)},
            "memory": {memory.name: index for index, memory in enumerate(cluster.memories)},
            "link": {link.name: index for index, link in enumerate(cluster.links)},
        }

    def read_step(self, reader: ObjectReader) -> Step:
        step: Step
        # Steps of one item need not say so; among several it would be a guess.
        read = reader.optional if self._num_items == 1 else reader.required
        items = read("items", list_of(a_count, "a list of item numbers"), (0,))
        if reader.has("copy"):
            tensor = self._find(reader, "copy", "tensor")
            src = self._find(reader, "from", "memory")
            dst = self._find(reader, "to", "memory")
            via = reader.required("via", list_of(a_name, "a list of link names"), ())
            path = f"{reader.path}.via"
            links = [
                reader.faults.find(f"{path}[{index}]", "link", name, self._ids["link"])
                for index, name in enumerate(via)
            ]
            step = Copy(tensor, src, dst, tuple(links), items)
        else:
            task, device = self._find(reader, "run", "task"), self._find(reader, "on", "device")
            step = Run(task, device, items)
        reader.finish()
        return step

    def _find(self, reader: ObjectReader, key: str, kind: str) -> int:
        name = reader.required(key, a_name, None)
        if name is None:
            return 0
        return reader.faults.find(f"{reader.path}.{key}", kind, name, self._ids[kind])


def _step_to_json(
    step: Step, graph: TaskGraph, cluster: Cluster, num_items: int
) -> dict[str, object]:
    value: dict[str, object]
    if isinstance(step, Run):
        value = {"run": graph.tasks[step.task].name, "on": cluster.devices[step.device].name}
    else:
        value = {
            "copy": graph.tensors[step.tensor].name,
            "from": cluster.memories[step.src].name,
            "to": cluster.memories[step.dst].name,
            "via": [cluster.links[link].name for link in step.route],
        }
    if num_items != 1 or step.items != (0,):
        value["items"] = list(step.items)
    return value


def _check_digests(
    graph_digest: str, cluster_digest: str, graph: TaskGraph, cluster: Cluster, source: str
) -> None:
    mismatches = digest_mismatches(graph, cluster, graph_digest, cluster_digest)
    if mismatches:
        raise PlanError(f"{source}: {mismatches[0]}; make the plan again")
