"""Steps that add up several items at once -> the module of their tasks, and what it reads.

What such a step reads was made item by item, elsewhere: it is joined along the rows (`joins`). So
its module has a variable for each tensor of each task, and is proven to add up over rows
(`relay.tasks.item_sums`).

before ==> after, for `run dw @ d items 0,1`

    dw = matmul(x, dy, transpose_a)    ==>    dw = matmul(%x<dw: [2n, a], %dy<dw: [2n, b], ...)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import prod

import tvm
from tvm import relay

from heteroplace.codegen.combine import ItemTensor
from heteroplace.codegen.cut_module import CutModule, Import
from heteroplace.codegen.segments import ValueName
from heteroplace.codegen.task_bodies import TaskBodies
from heteroplace.errors import LoweringError, UnsupportedRelayError
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Run
from heteroplace.relay.expressions import is_op_call
from heteroplace.relay.tasks.item_sums import sums_of_items


def is_joined_sum(graph: TaskGraph, step: Run | Collective) -> bool:
    """Say whether a step adds up several items by one run of its task."""
    return isinstance(step, Run) and len(step.items) > 1 and graph.tasks[step.task].adds


@dataclass(frozen=True)
class JoinedSums:
    """What adds up several items at once."""

    cut: CutModule
    tensors: Mapping[ValueName, ItemTensor]
    """How what it reads of each item lies side by side, by name in the graph."""


def cut_sums(
    mod: tvm.IRModule, graph: TaskGraph, tasks: Collection[int], num_items: int
) -> JoinedSums:
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
    cutter = _Cutter(mod["main"], graph)
    try:
        for task in sorted(tasks):
            cutter.add(task)
        return cutter.joined(num_items)
    except UnsupportedRelayError as err:
        raise LoweringError(
            f"the plan adds up {num_items} items at once: {err}; run that task item by item"
        ) from err


def joinable_sums(mod: tvm.IRModule, graph: TaskGraph) -> frozenset[str]:
    """Return the tasks of a module that may add up several items at once."""
    cutter, found = _Cutter(mod["main"], graph), set()
    for index, task in enumerate(graph.tasks):
        if task.adds:
            with suppress(UnsupportedRelayError):
                cutter.add(index)
                found.add(task.name)
    return frozenset(found)


class _Cutter:
    """Puts the tasks together one by one."""

    def __init__(self, main: relay.Function, graph: TaskGraph) -> None:
        self._graph = graph
        self._bodies = TaskBodies(main, graph)
        self._variables: dict[ValueName, relay.Var] = {}
        self._imports: dict[ValueName, Import] = {}
        self._made: dict[int, relay.Expr] = {}
        self._axes: dict[int, int] = {}
        """By tensor, along which axis its items are joined."""

    def add(self, task: int) -> None:
        """Add a task; UnsupportedRelayError if it is not proven to be a sum over items."""
        graph = self._graph
        variables: dict[ValueName, relay.Var] = {}
        imports: dict[ValueName, Import] = {}
        for tensor in graph.task_inputs[task]:
            description = graph.tensors[tensor]
            name = ValueName(f"{description.name}<{graph.tasks[task].name}")
            type_ = relay.TensorType(description.shape, description.dtype)
            variables[name], imports[name] = relay.Var(name.name, type_), Import(tensor)
        values, _ = self._bodies.instance(task, list(variables.values()))
        one = _module(variables, values)
        own = [each for each in graph.task_inputs[task] if not graph.tensors[each].shared]
        *others, last = product(*(self._axes_of(tensor) for tensor in own))
        for axes in others:
            with suppress(UnsupportedRelayError):
                self._check(one, imports, dict(zip(own, axes, strict=True)))
                break
        else:
            axes = last
            self._check(one, imports, dict(zip(own, axes, strict=True)))
        self._axes |= dict(zip(own, axes, strict=True))
        self._variables |= variables
        self._imports |= imports
        self._made |= dict(zip(graph.task_outputs[task], values, strict=True))

    def joined(self, num_items: int) -> JoinedSums:
        """Return all of them for several items."""
        exported = tuple(sorted(self._made))
        one = _module(self._variables, [self._made[tensor] for tensor in exported])
        several = self._several(one, self._imports, self._axes, num_items)
        tensors = {}
        for tensor, axis in self._axes.items():
            description = self._graph.tensors[tensor]
            name = ValueName(description.name)
            tensors[name] = ItemTensor(description.shape, description.dtype, axis)
        return JoinedSums(CutModule(several, exported, self._imports), tensors)

    def _axes_of(self, tensor: int) -> Sequence[int]:
        """Where the items of a tensor may be joined: all these axes are one order of elements."""
        if tensor in self._axes:
            return [self._axes[tensor]]
        shape = self._graph.tensors[tensor].shape
        return [axis for axis in range(max(1, len(shape))) if prod(shape[:axis]) == 1]

    def _check(
        self, one: tvm.IRModule, imports: Mapping[ValueName, Import], axes: Mapping[int, int]
    ) -> None:
        self._several(one, imports, axes, 2)

    def _several(
        self,
        one: tvm.IRModule,
        imports: Mapping[ValueName, Import],
        axes: Mapping[int, int],
        num_items: int,
    ) -> tvm.IRModule:
        tensors = {name.name: found.tensor for name, found in imports.items()}
        inputs = {name: axes[tensor] for name, tensor in tensors.items() if tensor in axes}
        zeros = [name for name, tensor in tensors.items() if self._is_zero(tensor)]
        return sums_of_items(one, num_items, inputs, zeros)

    def _is_zero(self, tensor: int) -> bool:
        made = self._bodies.expression(tensor)
        return isinstance(made, relay.Call) and is_op_call(made, "zeros")


def _module(variables: Mapping[ValueName, relay.Var], values: Sequence[relay.Expr]) -> tvm.IRModule:
    return tvm.IRModule.from_expr(relay.Function(list(variables.values()), relay.Tuple(values)))
