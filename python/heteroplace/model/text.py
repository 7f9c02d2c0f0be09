"""The golden text form of task graphs and plans: print(x) is readable, parse(print(x)) == x.

    graph pair                                        plan pair on box items 2
    input x 0 float32 [4] 16                          digests 0f3a... 77b2...
    task a nn.relu reads x weights 8                  origin "heft"
    tensor a.0 = a 0 float32 [4] 16                   run a @ cpu.0 items 0,1
    outputs a.0                                       copy a.0 ram => gpu via pcie items 1

A word that is not made of letters, digits and `_ . + / : $ @ * < > -` is written as a JSON string.
Lists are joined by commas; `()` is the empty list. A plan of one item does not mention items.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence

from heteroplace.errors import GraphError, HeteroPlaceError, PlanError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import Task, TaskGraph, Tensor
from heteroplace.model.plan import Copy, Plan, Run, Step

_BARE = r"[A-Za-z0-9_.+/:$@*<>-]+"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_WORD = rf"(?:{_QUOTED}|{_BARE})"
_ITEMS = r"(?: items (\(\)|\d+(?:,\d+)*))?"
_LIST = rf"(?:\(\)|{_WORD}(?:,{_WORD})*)"


def print_graph(graph: TaskGraph) -> str:
    """Return the text of `graph`: tensors in order of id, each task before what it makes."""
    lines = [f"graph {_quote(graph.name)}"]
    num_tasks_printed = 0
    for tensor in graph.tensors:
        shape = ",".join(str(extent) for extent in tensor.shape)
        kind = f"{_quote(tensor.dtype)} [{shape}] {tensor.bytes}"
        if tensor.producer is None:
            lines.append(f"input {_quote(tensor.name)} {tensor.index} {kind}")
            continue
        while num_tasks_printed <= tensor.producer:
            lines.append(_print_task(graph, num_tasks_printed))
            num_tasks_printed += 1
        producer = _quote(graph.tasks[tensor.producer].name)
        lines.append(f"tensor {_quote(tensor.name)} = {producer} {tensor.index} {kind}")
    while num_tasks_printed < len(graph.tasks):
        lines.append(_print_task(graph, num_tasks_printed))
        num_tasks_printed += 1
    lines.append(f"outputs {_join(graph.tensors[tensor].name for tensor in graph.outputs)}")
    return "\n".join(lines) + "\n"


def _print_task(graph: TaskGraph, task_id: int) -> str:
    task = graph.tasks[task_id]
    reads = _join(graph.tensors[tensor].name for tensor in graph.task_inputs[task_id])
    text = f"task {_quote(task.name)} {_quote(task.op)} reads {reads}"
    numbers = (
        ("flops", task.flops),
        ("weights", task.weight_bytes),
        ("workspace", task.workspace_bytes),
    )
    text += "".join(f" {key} {value}" for key, value in numbers if value)
    if task.devices is not None:
        text += f" devices {_join(task.devices)}"
    if task.together is not None:
        text += f" together {_quote(task.together)}"
    if task.members:
        text += f" members {_join(task.members)}"
    return text


def parse_graph(text: str) -> TaskGraph:
    """Return the graph that `print_graph` printed.

    Raises
    ------
    GraphError
        A line has another form, or names a tensor or task that does not exist.
    """
    lines = _Lines(text, GraphError)
    name = _unquote(lines.match(rf"graph ({_WORD})")[0])
    tasks: list[Task] = []
    reads: list[list[str]] = []
    tensors: list[tuple[str, str | None, int, tuple[int, ...], str, int]] = []
    kind = rf"(\d+) ({_WORD}) \[([\d,]*)\] (\d+)"
    while not lines.next_is("outputs"):
        if lines.next_is("task"):
            task, read = _parse_task(lines)
            tasks.append(task)
            reads.append(read)
            continue
        is_input = lines.next_is("input")
        pattern = rf"input ({_WORD})()" if is_input else rf"tensor ({_WORD}) = ({_WORD})"
        tensor, producer, index, dtype, shape, size = lines.match(f"{pattern} {kind}")
        extents = tuple(int(extent) for extent in shape.split(",") if extent)
        made_by = None if is_input else _unquote(producer)
        tensors.append((_unquote(tensor), made_by, int(index), extents, _unquote(dtype), int(size)))
    outputs = _split(lines.match(rf"outputs ({_LIST})")[0])
    lines.end()
    task_id = _ids((task.name for task in tasks), "task", GraphError)
    tensor_id = _ids((tensor[0] for tensor in tensors), "tensor", GraphError)
    consumers: list[list[int]] = [[] for _ in tensors]
    for reader, names in enumerate(reads):
        for read_name in names:
            consumers[tensor_id(read_name)].append(reader)
    return TaskGraph(
        name,
        tuple(tasks),
        tuple(
            Tensor(
                tensor,
                None if made_by is None else task_id(made_by),
                index,
                shape,
                dtype,
                size,
                tuple(consumers[position]),
            )
            for position, (tensor, made_by, index, shape, dtype, size) in enumerate(tensors)
        ),
        tuple(position for position, tensor in enumerate(tensors) if tensor[1] is None),
        tuple(tensor_id(output) for output in outputs),
    )


def _parse_task(lines: _Lines) -> tuple[Task, list[str]]:
    """The task of the next line and the names of the tensors it reads."""
    name, op, reads, flops, weights, workspace, devices, together, members = lines.match(
        rf"task ({_WORD}) ({_WORD}) reads ({_LIST})"
        r"(?: flops (\d+))?(?: weights (\d+))?(?: workspace (\d+))?"
        rf"(?: devices ({_LIST}))?(?: together ({_WORD}))?(?: members ({_LIST}))?"
    )
    task = Task(
        _unquote(name),
        _unquote(op),
        tuple(_split(members or "()")),
        int(flops or 0),
        int(weights or 0),
        int(workspace or 0),
        tuple(_split(devices)) if devices else None,
        _unquote(together) if together else None,
    )
    return task, _split(reads)


def print_plan(graph: TaskGraph, cluster: Cluster, plan: Plan) -> str:
    """Return the text of `plan`; names come from its graph and cluster."""
    items = "" if plan.items == 1 else f" items {plan.items}"
    lines = [
        f"plan {_quote(graph.name)} on {_quote(cluster.name)}{items}",
        f"digests {_quote(plan.graph_digest)} {_quote(plan.cluster_digest)}",
        f"origin {json.dumps(plan.origin)}",
    ]
    for step in plan.steps:
        if isinstance(step, Run):
            task, device = graph.tasks[step.task], cluster.devices[step.device]
            line = f"run {_quote(task.name)} @ {_quote(device.name)}"
        else:
            src, dst = cluster.memories[step.src], cluster.memories[step.dst]
            route = _join(cluster.links[link].name for link in step.route)
            tensor = graph.tensors[step.tensor].name
            line = f"copy {_quote(tensor)} {_quote(src.name)} => {_quote(dst.name)} via {route}"
        if plan.items != 1 or step.items != (0,):
            line += f" items {_join(map(str, step.items))}"
        lines.append(line)
    lines.extend(f"reason {json.dumps(reason)}" for reason in plan.reasons)
    return "\n".join(lines) + "\n"


def parse_plan(text: str, graph: TaskGraph, cluster: Cluster) -> Plan:
    """Return the plan that `print_plan` printed for this graph and cluster.

    Raises
    ------
    PlanError
        A line has another form, or names what the graph or the cluster does not have.
    """
    lines = _Lines(text, PlanError)
    num_items = lines.match(rf"plan (?:{_WORD}) on (?:{_WORD})(?: items (\d+))?")[0]
    digests = lines.match(rf"digests ({_WORD}) ({_WORD})")
    origin = _unquote(lines.match(rf"origin ({_QUOTED})")[0])
    task_id = _ids((task.name for task in graph.tasks), "task", PlanError)
    tensor_id = _ids((tensor.name for tensor in graph.tensors), "tensor", PlanError)
    device_id = _ids((device.name for device in cluster.devices), "device", PlanError)
    memory_id = _ids((memory.name for memory in cluster.memories), "memory", PlanError)
    link_id = _ids((link.name for link in cluster.links), "link", PlanError)
    steps: list[Step] = []
    while lines.next_is("run") or lines.next_is("copy"):
        if lines.next_is("run"):
            task, device, items = lines.match(rf"run ({_WORD}) @ ({_WORD}){_ITEMS}")
            run = Run(task_id(_unquote(task)), device_id(_unquote(device)), _parse_items(items))
            steps.append(run)
        else:
            tensor, src, dst, route, items = lines.match(
                rf"copy ({_WORD}) ({_WORD}) => ({_WORD}) via ({_LIST}){_ITEMS}"
            )
            steps.append(
                Copy(
                    tensor_id(_unquote(tensor)),
                    memory_id(_unquote(src)),
                    memory_id(_unquote(dst)),
                    tuple(link_id(link) for link in _split(route)),
                    _parse_items(items),
                )
            )
    reasons = []
    while lines.next_is("reason"):
        reasons.append(_unquote(lines.match(rf"reason ({_QUOTED})")[0]))
    lines.end()
    graph_digest, cluster_digest = map(_unquote, digests)
    count = int(num_items or 1)
    return Plan(graph_digest, cluster_digest, tuple(steps), origin, tuple(reasons), count)


def _parse_items(text: str | None) -> tuple[int, ...]:
    if text is None:
        return (0,)
    return tuple(int(item) for item in _split(text))


class _Lines:
    """The lines of a text, read one by one; errors name the line."""

    def __init__(self, text: str, error: type[HeteroPlaceError]) -> None:
        self._lines = text.split("\n")
        if self._lines[-1] == "":
            self._lines.pop()
        self._position = 0
        self._error = error

    def next_is(self, keyword: str) -> bool:
        """Say whether the next line begins with `keyword`."""
        if self._position >= len(self._lines):
            return False
        return self._lines[self._position].startswith(f"{keyword} ")

    def match(self, pattern: str) -> tuple[str, ...]:
        """Consume a line; return the groups of `pattern`, which must match all of it."""
        line = self._lines[self._position] if self._position < len(self._lines) else ""
        found = re.fullmatch(pattern, line)
        if found is None:
            keyword = pattern.split(" ", 1)[0]
            raise self._error(
                f"line {self._position + 1}: expected a line '{keyword} ...' as printed by "
                f"heteroplace, got {line!r}"
            )
        self._position += 1
        return found.groups()

    def end(self) -> None:
        """Raise if lines are left."""
        if self._position < len(self._lines):
            raise self._error(
                f"line {self._position + 1}: expected the end, got {self._lines[self._position]!r}"
            )


def _ids(names: Iterable[str], kind: str, error: type[HeteroPlaceError]) -> Callable[[str], int]:
    """A function from a name to its position that raises for names that do not exist."""
    position = {name: index for index, name in enumerate(names)}

    def find(name: str) -> int:
        if name not in position:
            raise error(f"no {kind} is called {name!r}; there are: {', '.join(position)}")
        return position[name]

    return find


def _quote(word: str) -> str:
    return word if re.fullmatch(_BARE, word) else json.dumps(word)


def _unquote(word: str) -> str:
    if not word.startswith('"'):
        return word
    value: str = json.loads(word)
    return value


def _join(words: Iterable[str] | Sequence[str]) -> str:
    return ",".join(_quote(word) for word in words) or "()"


def _split(text: str) -> list[str]:
    return [] if text == "()" else [_unquote(word) for word in re.findall(_WORD, text)]
