"""The golden text of a task graph, and back: tensors in order of id, each task before its results.

graph pair
input x 0 float32 [4] 16
task a nn.relu reads x weights 8
tensor a.0 = a 0 float32 [4] 16
outputs a.0

What is shared says so at the end of its line; tasks that add, named weights, and updates:

input w 0 float32 [4] 16 shared
task dw matmul_dw reads x,d adds named table 400
tensor dw.0 = dw 0 float32 [4] 16 shared
update w = sgd.0

Routed networks: which branch a task is in, the routed buffer in which a tensor lies, and after all
else the buffers and routers, with the capacities of each branch:

task e0 nn.dense reads x.0,r.1 branch r 0
tensor e0.0 = e0 0 float32 [6,8] 192 in rows
buffer rows 384
router r loads r.1 cells 6 top 2 capacities 1,2,6;1,2,6 overflow rounds quantum 4 inside outer 1
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from heteroplace.errors import GraphError
from heteroplace.model.graph import Task, TaskGraph, Tensor
from heteroplace.model.routed.routers import Router
from heteroplace.model.text.words import LIST, WORD, Lines, ids, join, quote, split, unquote


def print_graph(graph: TaskGraph) -> str:
    """Return the text of `graph`: tensors in order of id, each task before what it makes."""
    lines = [f"graph {quote(graph.name)}"]
    num_tasks_printed = 0
    for tensor in graph.tensors:
        shape = ",".join(str(extent) for extent in tensor.shape)
        kind = f"{quote(tensor.dtype)} [{shape}] {tensor.bytes}"
        kind += " shared" if tensor.shared else ""
        kind += "" if tensor.buffer is None else f" in {quote(tensor.buffer)}"
        if tensor.producer is None:
            lines.append(f"input {quote(tensor.name)} {tensor.index} {kind}")
            continue
        while num_tasks_printed <= tensor.producer:
            lines.append(_print_task(graph, num_tasks_printed))
            num_tasks_printed += 1
        producer = quote(graph.tasks[tensor.producer].name)
        lines.append(f"tensor {quote(tensor.name)} = {producer} {tensor.index} {kind}")
    while num_tasks_printed < len(graph.tasks):
        lines.append(_print_task(graph, num_tasks_printed))
        num_tasks_printed += 1
    lines.append(f"outputs {join(graph.tensors[tensor].name for tensor in graph.outputs)}")
    for state, update in graph.updates:
        names = quote(graph.tensors[state].name), quote(graph.tensors[update].name)
        lines.append(f"update {names[0]} = {names[1]}")
    lines += [f"buffer {quote(name)} {num_bytes}" for name, num_bytes in graph.buffers]
    lines += [_print_router(graph, router) for router in graph.routers]
    return "\n".join(lines) + "\n"


def _print_task(graph: TaskGraph, task_id: int) -> str:
    task = graph.tasks[task_id]
    reads = join(graph.tensors[tensor].name for tensor in graph.task_inputs[task_id])
    text = f"task {quote(task.name)} {quote(task.op)} reads {reads}"
    numbers = (
        ("flops", task.flops),
        ("weights", task.weight_bytes),
        ("workspace", task.workspace_bytes),
    )
    text += "".join(f" {key} {value}" for key, value in numbers if value)
    if task.devices is not None:
        text += f" devices {join(task.devices)}"
    if task.together is not None:
        text += f" together {quote(task.together)}"
    if task.members:
        text += f" members {join(task.members)}"
    text += " adds" if task.adds else ""
    text += "".join(f" named {quote(name)} {num_bytes}" for name, num_bytes in task.weights)
    text += "" if task.branch is None else f" branch {quote(task.branch[0])} {task.branch[1]}"
    return text


def _print_router(graph: TaskGraph, router: Router) -> str:
    capacities = ";".join(",".join(map(str, sizes)) for sizes in router.capacities)
    text = (
        f"router {quote(router.name)} loads {quote(graph.tensors[router.loads].name)} "
        f"cells {router.num_cells} top {router.top_k} capacities {capacities} "
        f"overflow {router.overflow} quantum {router.quantum}"
    )
    if router.parent is not None:
        text += f" inside {quote(router.parent[0])} {router.parent[1]}"
    return text


def parse_graph(text: str) -> TaskGraph:
    """Return the graph that `print_graph` printed.

    Raises
    ------
    GraphError
        A line has another form, or names a tensor or task that does not exist.
    """
    lines = Lines(text, GraphError)
    name = unquote(lines.match(rf"graph ({WORD})")[0])
    tasks: list[Task] = []
    reads: list[list[str]] = []
    tensors: list[Tensor] = []
    makers: list[str | None] = []
    while not lines.next_is("outputs"):
        if lines.next_is("task"):
            task, read = _parse_task(lines)
            tasks.append(task)
            reads.append(read)
        else:
            tensor, maker = _parse_tensor(lines)
            tensors.append(tensor)
            makers.append(maker)
    outputs = split(lines.match(rf"outputs ({LIST})")[0])
    updates = []
    while lines.next_is("update"):
        updates.append(lines.match(rf"update ({WORD}) = ({WORD})"))
    buffers = []
    while lines.next_is("buffer"):
        buffer, size = lines.match(rf"buffer ({WORD}) (\d+)")
        buffers.append((unquote(buffer), int(size)))
    routers = []
    while lines.next_is("router"):
        routers.append(_parse_router(lines))
    lines.end()
    task_id = ids((task.name for task in tasks), "task", GraphError)
    tensor_id = ids((tensor.name for tensor in tensors), "tensor", GraphError)
    consumers: list[list[int]] = [[] for _ in tensors]
    for reader, names in enumerate(reads):
        for read_name in names:
            consumers[tensor_id(read_name)].append(reader)
    return TaskGraph(
        name,
        tuple(tasks),
        tuple(
            replace(
                tensor,
                producer=None if maker is None else task_id(maker),
                consumers=tuple(consumers[position]),
            )
            for position, (tensor, maker) in enumerate(zip(tensors, makers, strict=True))
        ),
        tuple(position for position, maker in enumerate(makers) if maker is None),
        tuple(tensor_id(output) for output in outputs),
        tuple((tensor_id(unquote(old)), tensor_id(unquote(new))) for old, new in updates),
        tuple(_placed(router, tensor_id(loads), makers, task_id) for router, loads in routers),
        tuple(buffers),
    )


def _parse_tensor(lines: Lines) -> tuple[Tensor, str | None]:
    """The tensor of the next line, without ids, and its producer; None: it is an input."""
    is_input = lines.next_is("input")
    pattern = rf"input ({WORD})()" if is_input else rf"tensor ({WORD}) = ({WORD})"
    kind = rf"(\d+) ({WORD}) \[([\d,]*)\] (\d+)( shared)?(?: in ({WORD}))?"
    fields = lines.match(f"{pattern} {kind}")
    name, producer, index, dtype, shape, size, shared, buffer = fields
    extents = tuple(int(extent) for extent in shape.split(",") if extent)
    tensor = Tensor(
        *(unquote(name), None, int(index), extents, unquote(dtype), int(size), ()),
        shared=shared is not None,
        buffer=unquote(buffer) if buffer else None,
    )
    return tensor, None if is_input else unquote(producer)


def _placed(
    router: Router, loads: int, makers: list[str | None], task_id: Callable[[str], int]
) -> Router:
    maker = makers[loads]
    return replace(router, loads=loads, task=-1 if maker is None else task_id(maker))


def _parse_router(lines: Lines) -> tuple[Router, str]:
    """The router of the next line, without ids, and the name of its loads."""
    name, loads, cells, top, sizes, overflow, quantum, parent, branch = lines.match(
        rf"router ({WORD}) loads ({WORD}) cells (\d+) top (\d+) capacities ([\d,;]*) "
        rf"overflow ({WORD}) quantum (\d+)(?: inside ({WORD}) (\d+))?"
    )
    capacities = tuple(
        tuple(int(size) for size in row.split(",") if size) for row in sizes.split(";") if sizes
    )
    router = Router(
        *(unquote(name), -1, -1, int(cells), int(top), capacities, unquote(overflow)),
        quantum=int(quantum),
        parent=(unquote(parent), int(branch)) if parent else None,
    )
    return router, unquote(loads)


def _parse_task(lines: Lines) -> tuple[Task, list[str]]:
    """The task of the next line and the names of the tensors it reads."""
    name, op, reads, *rest = lines.match(
        rf"task ({WORD}) ({WORD}) reads ({LIST})"
        r"(?: flops (\d+))?(?: weights (\d+))?(?: workspace (\d+))?"
        rf"(?: devices ({LIST}))?(?: together ({WORD}))?(?: members ({LIST}))?"
        rf"( adds)?((?: named {WORD} \d+)*)(?: branch ({WORD}) (\d+))?"
    )
    flops, weights, workspace, devices, together, members, adds, named, router, branch = rest
    shared_weights = re.findall(rf" named ({WORD}) (\d+)", named)
    task = Task(
        unquote(name),
        unquote(op),
        tuple(split(members or "()")),
        int(flops or 0),
        int(weights or 0),
        int(workspace or 0),
        tuple(split(devices)) if devices else None,
        unquote(together) if together else None,
        adds is not None,
        tuple((unquote(weight), int(num_bytes)) for weight, num_bytes in shared_weights),
        (unquote(router), int(branch)) if router else None,
    )
    return task, split(reads)
