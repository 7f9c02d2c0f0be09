"""Steps that add up several items at once -> the module of their tasks, and what it reads.

What such a step reads was made item by item, elsewhere: it is joined along the rows (`joins`). So
its module has a variable for each tensor of each task, and is proven to add up over rows
(`relay.tasks.item_sums`).

before ==> after, for `run dw @ d items 0,1`

    dw = matmul(x, dy, transpose_a)    ==>    dw = matmul(%x<dw: [2n, a], %dy<dw: [2n, b], ...)
"""

from __future__ import annotations

from collections.abc import Collection

import tvm
from tvm import relay

from heteroplace.codegen.combine import ItemTensor
from heteroplace.codegen.cut_module import CutModule, Import
from heteroplace.codegen.segments import ValueName
from heteroplace.codegen.task_bodies import TaskBodies
from heteroplace.errors import LoweringError, UnsupportedRelayError
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Run
from heteroplace.relay.tasks.item_sums import sums_of_items


def is_joined_sum(graph: TaskGraph, step: Run | Collective) -> bool:
    """Say whether a step adds up several items by one run of its task."""
    return isinstance(step, Run) and len(step.items) > 1 and graph.tasks[step.task].adds


def cut_sums(
    mod: tvm.IRModule, graph: TaskGraph, tasks: Collection[int], num_items: int
) -> CutModule:
    """Cut tasks that add up over items out of a module, for several items at once.

    Parameters
    ----------
    mod
        Neutral module for one item; its spans name the tasks of `graph`.

    Raises
    ------
    LoweringError
        The module is not that of the graph, or a task is not proven to be a sum over rows.
    """
    bodies = TaskBodies(mod["main"], graph)
    variables: dict[ValueName, relay.Var] = {}
    imports: dict[ValueName, Import] = {}
    made: dict[int, relay.Expr] = {}
    for task in sorted(tasks):
        reads = []
        for tensor in graph.task_inputs[task]:
            description = graph.tensors[tensor]
            name = ValueName(f"{description.name}<{graph.tasks[task].name}")
            type_ = relay.TensorType(description.shape, description.dtype)
            variables[name] = relay.Var(name.name, type_)
            imports[name] = Import(tensor)
            reads.append(variables[name])
        values, _ = bodies.instance(task, reads)
        made |= dict(zip(graph.task_outputs[task], values, strict=True))
    exported = tuple(sorted(made))
    body = relay.Tuple([made[tensor] for tensor in exported])
    one = tvm.IRModule.from_expr(relay.Function(list(variables.values()), body))
    items = [name.name for name in variables if not graph.tensors[imports[name].tensor].shared]
    try:
        return CutModule(sums_of_items(one, num_items, items), exported, imports)
    except UnsupportedRelayError as err:
        raise LoweringError(
            f"the plan adds up {num_items} items at once: {err}; run that task item by item"
        ) from err


def joined_tensors(graph: TaskGraph, tasks: Collection[int]) -> dict[ValueName, ItemTensor]:
    """Return how what such tasks read of each item lies side by side, by name in the graph."""
    found = {}
    for task in tasks:
        for tensor in graph.task_inputs[task]:
            description = graph.tensors[tensor]
            if not description.shared:
                name = ValueName(description.name)
                found[name] = ItemTensor(description.shape, description.dtype, 0)
    return found


def joinable_sums(mod: tvm.IRModule, graph: TaskGraph) -> frozenset[str]:
    """Return the tasks of a module that may add up several items at once."""
    found = set()
    for index, task in enumerate(graph.tasks):
        if task.adds:
            try:
                cut_sums(mod, graph, [index], 2)
            except LoweringError:
                continue
            found.add(task.name)
    return frozenset(found)
