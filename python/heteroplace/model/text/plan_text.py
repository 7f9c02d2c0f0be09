"""The golden text of a plan, and back; and what messages call its steps.

    plan pair on box items 2
    digests 0f3a... 77b2...
    origin "heft"
    run a @ cpu.0 items 0,1
    copy a.0 ram => gpu via pcie items 1
    all_reduce sum @ cpu.0,gpu items 0,1
    broadcast new @ cpu.0,gpu root gpu items 0,1

    run e0 @ gpu if r 0
    copy e0.0 gpu => ram via pcie if r 0
    load e1,e2 ram => gpu via pcie at 0+4096 if r 1 predicted

A plan of one item does not mention items. Its first line ends with "weights 4096" where that is the
budget for weights. Behind "at" stand the first byte and the bytes of a place in the room for them,
behind "if" the router, the branch and, but for "active", when a guarded step is made. A collective
is called by its kind; it mentions its root where that kind has one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from heteroplace.errors import PlanError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.collectives import KINDS, collective_kind
from heteroplace.model.graph import Task, TaskGraph, Tensor
from heteroplace.model.plan import Collective, Copy, Guard, Load, Plan, Run, Step, guard_of
from heteroplace.model.routed.routers import Router
from heteroplace.model.text.words import LIST, QUOTED, WORD, Lines, ids, quote, split, unquote

_Named = Task | Tensor | Memory | Device | Link | Router
_ITEMS = r"(?: items (\(\)|\d+(?:,\d+)*))?"
_GUARD = rf"(?: if ({WORD}) (\d+)(?: ({WORD}))?)?"
_WAY = rf"({WORD}) => ({WORD}) via ({LIST})"
_PLACE = r"(?: at (\d+)\+(\d+))?"
_COLLECTIVE = "collective"
"""A collective step whose task is no collective, or does not exist."""


def print_plan(graph: TaskGraph, cluster: Cluster, plan: Plan) -> str:
    """Return the text of `plan`; names come from its graph and cluster."""
    items = "" if plan.items == 1 else f" items {plan.items}"
    budget = "" if plan.weights_budget is None else f" weights {plan.weights_budget}"
    lines = [
        f"plan {quote(graph.name)} on {quote(cluster.name)}{items}{budget}",
        f"digests {quote(plan.graph_digest)} {quote(plan.cluster_digest)}",
        f"origin {json.dumps(plan.origin)}",
    ]
    lines += [step_line(step, graph, cluster, plan.items) for step in plan.steps]
    lines.extend(f"reason {json.dumps(reason)}" for reason in plan.reasons)
    return "\n".join(lines) + "\n"


def step_name(step: Step, graph: TaskGraph, cluster: Cluster) -> str:
    """Return what a step is about, for tables: its task, or "TENSOR FROM => TO" for a copy, and
    tasks for a load."""
    if isinstance(step, (Run, Collective)):
        return _name(graph.tasks, step.task)
    src, dst = _name(cluster.memories, step.src), _name(cluster.memories, step.dst)
    if isinstance(step, Copy):
        return f"{_name(graph.tensors, step.tensor)} {src} => {dst}"
    return f"{','.join(_name(graph.tasks, task) for task in step.tasks) or '()'} {src} => {dst}"


def step_line(step: Step, graph: TaskGraph, cluster: Cluster, num_items: int = 1) -> str:
    """Return the line of a step of a plan for `num_items` items.

    An id that does not exist is printed as "?ID", which no parser takes.
    """
    name = step_name(step, graph, cluster)
    if isinstance(step, Run):
        line = f"run {name} @ {_name(cluster.devices, step.device)}"
    elif isinstance(step, Collective):
        line = _collective_line(step, name, graph, cluster)
    else:
        route = ",".join(_name(cluster.links, link) for link in step.route)
        line = f"{'copy' if isinstance(step, Copy) else 'load'} {name} via {route or '()'}"
    if step.items != (0,) or (num_items != 1 and not isinstance(step, Load)):
        line += f" items {','.join(map(str, step.items)) or '()'}"
    if isinstance(step, Load) and step.place is not None:
        line += " at {}+{}".format(*step.place)
    guard = guard_of(step)
    if guard is not None:
        line += f" if {_name(graph.routers, guard.router)} {guard.branch}"
        line += "" if guard.when == "active" else f" {quote(guard.when)}"
    return line


def _collective_line(step: Collective, name: str, graph: TaskGraph, cluster: Cluster) -> str:
    exists = step.task in range(len(graph.tasks))
    kind = collective_kind(graph.tasks[step.task].op) if exists else None
    names = [_name(cluster.devices, device) for device in step.devices]
    line = f"{kind.name if kind else _COLLECTIVE} {name} @ {','.join(names) or '()'}"
    if step.root or (kind is not None and "root" in (kind.reads, kind.makes)):
        root = names[step.root] if step.root in range(len(names)) else f"?{step.root}"
        line += f" root {root}"
    return line


def quote_step(plan: Plan, index: int, graph: TaskGraph, cluster: Cluster) -> str:
    """Return what messages call a step: "step 12: copy a.0 ram => gpu via pcie"."""
    return f"step {index}: {step_line(plan.steps[index], graph, cluster, plan.items)}"


def _name(values: Sequence[_Named], index: int) -> str:
    return quote(values[index].name) if index in range(len(values)) else f"?{index}"


def parse_plan(text: str, graph: TaskGraph, cluster: Cluster) -> Plan:
    """Return the plan that `print_plan` printed for this graph and cluster.

    Raises
    ------
    PlanError
        A line has another form, or names what the graph or the cluster does not have.
    """
    lines = Lines(text, PlanError)
    num_items, budget = lines.match(
        rf"plan (?:{WORD}) on (?:{WORD})(?: items (\d+))?(?: weights (\d+))?"
    )
    digests = lines.match(rf"digests ({WORD}) ({WORD})")
    origin = unquote(lines.match(rf"origin ({QUOTED})")[0])
    task_id = ids((task.name for task in graph.tasks), "task", PlanError)
    tensor_id = ids((tensor.name for tensor in graph.tensors), "tensor", PlanError)
    device_id = ids((device.name for device in cluster.devices), "device", PlanError)
    guard, find_way = _guard_parser(graph), _way_parser(cluster)
    steps: list[Step] = []
    while not lines.next_is("reason"):
        if lines.next_is("run"):
            task, device, items, *end = lines.match(rf"run ({WORD}) @ ({WORD}){_ITEMS}{_GUARD}")
            run = task_id(unquote(task)), device_id(unquote(device)), _parse_items(items)
            steps.append(Run(*run, guard(*end)))
        elif lines.next_is("copy"):
            tensor, *way, items, router, branch, when = lines.match(
                rf"copy ({WORD}) {_WAY}{_ITEMS}{_GUARD}"
            )
            copied = tensor_id(unquote(tensor)), *find_way(*way), _parse_items(items)
            steps.append(Copy(*copied, guard(router, branch, when)))
        elif lines.next_is("load"):
            tasks, *way, first, size, router, branch, when = lines.match(
                rf"load ({LIST}) {_WAY}{_PLACE}{_GUARD}"
            )
            loaded = tuple(map(task_id, split(tasks))), *find_way(*way)
            place = None if first is None else (int(first), int(size))
            steps.append(Load(*loaded, guard(router, branch, when), place))
        elif any(map(lines.next_is, (_COLLECTIVE, *KINDS))):
            steps.append(_parse_collective(lines, task_id, device_id))
        else:
            break
    reasons = []
    while lines.next_is("reason"):
        reasons.append(unquote(lines.match(rf"reason ({QUOTED})")[0]))
    lines.end()
    graph_digest, cluster_digest = map(unquote, digests)
    count, most = int(num_items or 1), None if budget is None else int(budget)
    return Plan(graph_digest, cluster_digest, tuple(steps), origin, tuple(reasons), count, most)


def _guard_parser(graph: TaskGraph) -> Callable[..., Guard | None]:
    """A function from the words behind "if", or None where there are none, to the guard."""
    router_id = ids((router.name for router in graph.routers), "router", PlanError)

    def parse(router: str | None, branch: str, when: str | None) -> Guard | None:
        if router is None:
            return None
        return Guard(router_id(unquote(router)), int(branch), unquote(when or "active"))

    return parse


def _way_parser(cluster: Cluster) -> Callable[..., tuple[int, int, tuple[int, ...]]]:
    """A function from the words of a way to the memories at its ends and its links."""
    memory_id = ids((memory.name for memory in cluster.memories), "memory", PlanError)
    link_id = ids((link.name for link in cluster.links), "link", PlanError)

    def parse(src: str, dst: str, route: str) -> tuple[int, int, tuple[int, ...]]:
        links = tuple(link_id(link) for link in split(route))
        return memory_id(unquote(src)), memory_id(unquote(dst)), links

    return parse


def _parse_collective(
    lines: Lines, task_id: Callable[[str], int], device_id: Callable[[str], int]
) -> Collective:
    task, names, root, items = lines.match(
        rf"(?:{WORD}) ({WORD}) @ ({LIST})(?: root ({WORD}))?{_ITEMS}"
    )
    devices = tuple(device_id(device) for device in split(names))
    position = 0
    if root is not None:
        first = device_id(unquote(root))
        if first not in devices:
            raise PlanError(f"the root {unquote(root)!r} is none of the devices {names}")
        position = devices.index(first)
    return Collective(task_id(unquote(task)), devices, _parse_items(items), position)


def _parse_items(text: str | None) -> tuple[int, ...]:
    if text is None:
        return (0,)
    return tuple(int(item) for item in split(text))
