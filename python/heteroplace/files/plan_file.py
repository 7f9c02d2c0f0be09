"""Plans as JSON. Steps name tasks, devices, tensors, memories and links.

Whether a plan is valid is not asked here (that is `check_plan`), only whether its names exist.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from heteroplace.errors import PlanError
from heteroplace.files.faults import Faults
from heteroplace.files.fields.fields import (
    Count,
    Json,
    Name,
    Names,
    SchemaLink,
    Text,
    Texts,
    about,
    one_of,
    or_none,
)
from heteroplace.files.reader import read_json, read_struct, write_json
from heteroplace.model.cluster import Cluster
from heteroplace.model.digests import digest_mismatches, remedy_of_mismatch
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import WHEN, Collective, Copy, Guard, Load, Plan, Run, Step, guard_of

SCHEMA_VERSION = 1
Items = Annotated[
    tuple[Count, ...],
    about("Items of this step; absent only in a plan of one item."),
]


class GuardEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    """When a step is made, of a routed network."""

    router: Name
    branch: Count
    when: Annotated[
        Text,
        one_of(WHEN),
        about("The branch has a load; is predicted to have one; has one and is not so predicted."),
    ] = "active"


GuardOfStep = Annotated[GuardEntry, about("When it is made; absent: in every run.")]


class RunStep(Struct, forbid_unknown_fields=True, kw_only=True):
    """A task runs on a device."""

    items: Items | UnsetType = UNSET
    guard: GuardOfStep | UnsetType = UNSET
    run: Annotated[Name, about("Task.")]
    on: Annotated[Name, about("Device.")]


class CopyStep(Struct, forbid_unknown_fields=True, kw_only=True):
    """A tensor is copied from memory to memory."""

    items: Items | UnsetType = UNSET
    guard: GuardOfStep | UnsetType = UNSET
    copy: Annotated[Name, about("Tensor.")]
    src: Annotated[Name, about("Memory.")] = field(name="from")
    dst: Annotated[Name, about("Memory.")] = field(name="to")
    via: Annotated[Names, Meta(min_length=1, description="Links, in order.")]


class PlaceEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    """Bytes of the room for weights."""

    first: Annotated[Count, about("First byte.")]
    bytes: Count


class LoadStep(Struct, forbid_unknown_fields=True, kw_only=True):
    """The weights of tasks are brought to where the tasks run, from where they are kept."""

    guard: GuardOfStep | UnsetType = UNSET
    load: Annotated[Names, Meta(min_length=1, description="Tasks.")]
    src: Annotated[Name, about("Memory.")] = field(name="from")
    dst: Annotated[Name, about("Memory.")] = field(name="to")
    via: Annotated[Names, Meta(min_length=1, description="Links, in order.")]
    place: (
        Annotated[PlaceEntry, about("In the room for weights there; absent: bytes of their own.")]
        | UnsetType
    ) = UNSET


class CollectiveStep(Struct, forbid_unknown_fields=True, kw_only=True):
    """A task whose op is a collective runs on several devices at once."""

    items: Items | UnsetType = UNSET
    collective: Annotated[Name, about("Task.")]
    on: Annotated[Names, Meta(min_length=1, description="Devices, in rank order.")]
    root: Annotated[
        Count, about("Position in `on` of the device that gives or gets it, for kinds with one.")
    ] = 0


_CHOICES: dict[str, type[Struct]] = {
    "copy": CopyStep,
    "collective": CollectiveStep,
    "load": LoadStep,
    "run": RunStep,
}
"""By the key that tells them apart: the first that a step has; without any it is a run."""


def _struct_of(step: object) -> type[Struct]:
    keys = step if isinstance(step, dict) else {}
    return next((entry for key, entry in _CHOICES.items() if key in keys), RunStep)


def _step_schema() -> Json:
    """The JSON Schema of a step, which chooses as `_struct_of`."""
    schema: Json = {"$ref": "#/$defs/RunStep"}
    for key, entry in reversed(list(_CHOICES.items())[:-1]):
        then = {"$ref": f"#/$defs/{entry.__name__}"}
        schema = {"if": {"required": [key]}, "then": then, "else": schema}
    return schema


StepEntry = Annotated[Any, Meta(extra_json_schema=_step_schema())]


class PlanFile(Struct, forbid_unknown_fields=True, kw_only=True):
    """An ordered program of run, copy, collective and load steps."""

    schema: SchemaLink = field(default="", name="$schema")
    schema_version: Literal[1]
    graph: Annotated[Text, about("Name of the graph; for people.")] = ""
    cluster: Annotated[Text, about("Name of the cluster; for people.")] = ""
    graph_digest: Text
    cluster_digest: Text
    structure_digest: Annotated[
        Text, about("Of what the plan depends on in the graph; it can be replayed where it is so.")
    ] = ""
    origin: Annotated[Text, about("What made it.")]
    reasons: Annotated[
        Texts, about("For each task, in order of the graph, why it is where it is.")
    ] = ()
    items: Annotated[
        Count, about("Number of model inputs that it serves, called item 0, 1, ...")
    ] = 1
    weights_budget: (
        Annotated[
            Count, about("Most bytes that weights of branches take in a memory; absent: no limit.")
        ]
        | UnsetType
    ) = UNSET
    steps: tuple[StepEntry, ...]

    also_described: ClassVar[tuple[type[Struct], ...]] = tuple(_CHOICES.values())

    def __post_init__(self) -> None:
        self.steps = tuple(msgspec.convert(step, _struct_of(step)) for step in self.steps)


def save_plan(plan: Plan, graph: TaskGraph, cluster: Cluster, path: str | os.PathLike[str]) -> None:
    """Write `plan` to `path` so that `load_plan` returns an equal one; atomic.

    Raises
    ------
    PlanError
        The plan belongs to another graph or cluster.
    """
    _check_digests(plan, graph, cluster, "the plan")
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
        "structure_digest": graph.structure_digest,
        "origin": plan.origin,
    }
    if plan.items != 1:
        value["items"] = plan.items
    if plan.weights_budget is not None:
        value["weights_budget"] = plan.weights_budget
    value["steps"] = [_step_to_json(step, graph, cluster, plan.items) for step in plan.steps]
    if plan.reasons:
        value["reasons"] = list(plan.reasons)
    return value


def plan_from_json(value: object, graph: TaskGraph, cluster: Cluster, source: str = "plan") -> Plan:
    """Return the plan that a parsed JSON value describes.

    Parameters
    ----------
    value
        What `json.load` returned.
    graph, cluster
        What the plan must be for.
    source
        What to call the value in messages.

    Raises
    ------
    PlanError
        As `load_plan`.
    """
    file, faults = read_struct(value, PlanFile, source, PlanError)
    # Before the names are read: those of another graph would only give a heap of unknown ones.
    _check_digests(file, graph, cluster, source)
    return _plan_of(file, graph, cluster, faults)


def replayed_plan(value: object, graph: TaskGraph, cluster: Cluster, source: str = "plan") -> Plan:
    """Return the plan of a JSON value for a graph of the same structure, and any cluster.

    Names of devices, memories and links must be those of `cluster`. Whether pins, memories and
    links admit the plan is asked by `check_plan`.

    Raises
    ------
    PlanError
        The file has faults, or is for another graph: the first difference is named.
    """
    file, faults = read_struct(value, PlanFile, source, PlanError)
    if graph.structure_digest != file.structure_digest and graph.digest() != file.graph_digest:
        raise PlanError(
            f"{source}: the plan {_difference(file, graph)}; give a plan of this graph, or solve "
            f"again without plan_in"
        )
    plan = _plan_of(file, graph, cluster, faults)
    return replace(plan, graph_digest=graph.digest(), cluster_digest=cluster.digest())


def _difference(file: PlanFile, graph: TaskGraph) -> str:
    """The first thing in the steps of a plan that is not as in a graph."""
    runs = {step.run for step in file.steps if isinstance(step, RunStep)}
    runs |= {step.collective for step in file.steps if isinstance(step, CollectiveStep)}
    loaded = {task for step in file.steps if isinstance(step, LoadStep) for task in step.load}
    guards = [step.guard for step in file.steps if isinstance(step, (RunStep, CopyStep, LoadStep))]
    copies = {step.copy for step in file.steps if isinstance(step, CopyStep)}
    for what, named, saved in (
        ("task", runs | loaded, {task.name for task in graph.tasks}),
        ("router", {guard.router for guard in guards if guard is not UNSET}, graph.router_ids),
        ("tensor", copies, {tensor.name for tensor in graph.tensors}),
    ):
        strangers = sorted(named - set(saved))
        if strangers:
            return f"names {what} {strangers[0]!r}, which graph {graph.name!r} does not have"
    for task in graph.tasks:
        if task.name not in runs:
            return f"does not run task {task.name!r} of graph {graph.name!r}"
    return (
        f"is for a graph {file.graph!r} of the same task names with other ops, sizes or reads than "
        f"graph {graph.name!r}"
    )


def _plan_of(file: PlanFile, graph: TaskGraph, cluster: Cluster, faults: Faults) -> Plan:
    """The plan with the names in its steps made ids; raises if there are faults."""
    if file.reasons and len(file.reasons) != len(graph.tasks):
        faults.add(
            ("reasons",),
            f"has {len(file.reasons)} texts; expected one per task: {len(graph.tasks)}",
        )
    names = _Names(graph, cluster, file.items, faults)
    steps = tuple(names.step(entry, index) for index, entry in enumerate(file.steps))
    faults.check()
    digests = file.graph_digest, file.cluster_digest
    return Plan(
        *digests, steps, file.origin, file.reasons, file.items, or_none(file.weights_budget)
    )


class _Names:
    """Ids of everything that a step may name."""

    def __init__(self, graph: TaskGraph, cluster: Cluster, num_items: int, faults: Faults) -> None:
        self._num_items = num_items
        self._faults = faults
        self._ids = {
            "task": {task.name: index for index, task in enumerate(graph.tasks)},
            "tensor": {tensor.name: index for index, tensor in enumerate(graph.tensors)},
            "device": {device.name: index for index, device in enumerate(cluster.devices)},
            "memory": {memory.name: index for index, memory in enumerate(cluster.memories)},
            "link": {link.name: index for index, link in enumerate(cluster.links)},
            "router": graph.router_ids,
        }

    def step(self, entry: object, index: int) -> Step:
        """The step of an entry, the names in it made ids."""

        def find(what: str, name: str, *key: str | int) -> int:
            ids = self._ids[what]
            if name in ids:
                return ids[name]
            return self._faults.find(("steps", index, *key), what, name, ids)

        def way(entry: CopyStep | LoadStep) -> tuple[int, int, tuple[int, ...]]:
            links = tuple(find("link", name, "via", i) for i, name in enumerate(entry.via))
            return find("memory", entry.src, "from"), find("memory", entry.dst, "to"), links

        assert isinstance(entry, (RunStep, CopyStep, CollectiveStep, LoadStep))
        if isinstance(entry, LoadStep):
            tasks = tuple(find("task", name, "load", i) for i, name in enumerate(entry.load))
            place = None if entry.place is UNSET else (entry.place.first, entry.place.bytes)
            return Load(tasks, *way(entry), self._guard(entry.guard, index), place)
        items = (0,) if entry.items is UNSET else entry.items
        # Steps of one item need not say so; among several it would be a guess.
        if entry.items is UNSET and self._num_items != 1:
            self._faults.missing(("steps", index), "items")
        if isinstance(entry, CollectiveStep):
            task = find("task", entry.collective, "collective")
            devices = tuple(find("device", name, "on", i) for i, name in enumerate(entry.on))
            return Collective(task, devices, items, entry.root)
        guard = self._guard(entry.guard, index)
        if isinstance(entry, RunStep):
            run = find("task", entry.run, "run"), find("device", entry.on, "on")
            return Run(*run, items, guard)
        return Copy(find("tensor", entry.copy, "copy"), *way(entry), items, guard)

    def _guard(self, entry: GuardEntry | UnsetType, index: int) -> Guard | None:
        if entry is UNSET:
            return None
        path, ids = ("steps", index, "guard", "router"), self._ids["router"]
        return Guard(self._faults.find(path, "router", entry.router, ids), entry.branch, entry.when)


def _step_to_json(
    step: Step, graph: TaskGraph, cluster: Cluster, num_items: int
) -> dict[str, object]:
    value: dict[str, object]
    if isinstance(step, Run):
        value = {"run": graph.tasks[step.task].name, "on": cluster.devices[step.device].name}
    elif isinstance(step, Collective):
        names = [cluster.devices[device].name for device in step.devices]
        value = {"collective": graph.tasks[step.task].name, "on": names}
        if step.root:
            value["root"] = step.root
    else:
        value = {
            **_moved_to_json(step, graph),
            "from": cluster.memories[step.src].name,
            "to": cluster.memories[step.dst].name,
            "via": [cluster.links[link].name for link in step.route],
        }
    if step.items != (0,) or (num_items != 1 and not isinstance(step, Load)):
        value["items"] = list(step.items)
    if isinstance(step, Load) and step.place is not None:
        value["place"] = {"first": step.place[0], "bytes": step.place[1]}
    guard = guard_of(step)
    if guard is not None:
        name = graph.routers[guard.router].name
        value["guard"] = {"router": name, "branch": guard.branch, "when": guard.when}
    return value


def _moved_to_json(step: Copy | Load, graph: TaskGraph) -> dict[str, object]:
    if isinstance(step, Copy):
        return {"copy": graph.tensors[step.tensor].name}
    return {"load": [graph.tasks[task].name for task in step.tasks]}


def _check_digests(plan: Plan | PlanFile, graph: TaskGraph, cluster: Cluster, source: str) -> None:
    mismatches = digest_mismatches(graph, cluster, plan.graph_digest, plan.cluster_digest)
    if mismatches:
        structure = plan.structure_digest if isinstance(plan, PlanFile) else ""
        raise PlanError(f"{source}: {mismatches[0]}; {remedy_of_mismatch(graph, structure)}")
