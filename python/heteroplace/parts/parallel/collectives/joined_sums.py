"""Steps that add up several items at once -> the module of their tasks, and what it reads.

What such a step reads was made item by item, elsewhere: it is joined along the rows (`joins`). So
its module has a variable for each tensor of each task, and is proven to add up over rows
(`relay.tasks.item_sums`).

before ==> after, for `run dw @ d items 0,1`

    dw = matmul(x, dy, transpose_a)    ==>    dw = matmul(%x<dw: [2n, a], %dy<dw: [2n, b], ...)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from math import prod

import tvm
from tvm import relay

from heteroplace.errors import HeteroPlaceError, LoweringError, UnsupportedRelayError
from heteroplace.lower.items.combine import ItemTensor
from heteroplace.lower.segments import ValueName
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Run
from heteroplace.parts.parallel.collectives.cut_module import CutModule, Import
from heteroplace.parts.parallel.collectives.task_bodies import TaskBodies
from heteroplace.relay.expressions import is_op_call
from heteroplace.relay.tasks.item_sums import sums_of_items


def is_joined_sum(graph: TaskGraph, step: Run | Collective) -> bool:
    """Say whether a step adds up several items by one run of its task."""
    return isinstance(step, Run) and len(step.items) > 1 and graph.tasks[step.task].adds


class JoinableSums:
    """The tasks of a module that may add up several items at once, each proven.

    Parameters
    ----------
    mod
        Neutral module for one item; its spans name the tasks of `graph`.
    """

    def __init__(self, mod: tvm.IRModule, graph: TaskGraph) -> None:
        self._graph = graph
        self._bodies = TaskBodies(mod["main"], graph)
        self._axes: dict[int, int] = {}
        """By tensor, along which axis its items are joined."""
        self._refused: dict[int, HeteroPlaceError] = {}
        """Why a task is not proven to be a sum over items, or is not in the module."""
        for index, task in enumerate(graph.tasks):
            if task.adds:
                try:
                    self._axes |= self._proven(index)
                except (UnsupportedRelayError, LoweringError) as err:
                    self._refused[index] = err

    @property
    def names(self) -> frozenset[str]:
        """The tasks."""
        tasks = enumerate(self._graph.tasks)
        return frozenset(
            task.name for index, task in tasks if task.adds and index not in self._refused
        )

    @property
    def tensors(self) -> dict[ValueName, ItemTensor]:
        """How what they read of each item lies side by side, by name in the graph."""
        tensors = {}
        for tensor, axis in self._axes.items():
            description = self._graph.tensors[tensor]
            name = ValueName(description.name)
            tensors[name] = ItemTensor(description.shape, description.dtype, axis)
        return tensors

    def cut(self, tasks: Collection[int], num_items: int) -> CutModule:
        """Cut some of the tasks out of the module, for several items at once.

        Raises
        ------
        LoweringError
            One of them is not proven to be a sum over items.
        """
        for task in sorted(self._refused.keys() & set(tasks)):
            raise LoweringError(
                f"the plan adds up {num_items} items at once by task "
                f"{self._graph.tasks[task].name!r}: {self._refused[task]}; run it item by item"
            ) from self._refused[task]
        return self._several(tasks, self._axes, num_items)

    def _proven(self, task: int) -> dict[int, int]:
        """By tensor that a task reads, the axis along which it adds up items."""
        reads = self._graph.task_inputs[task]
        own = [tensor for tensor in reads if not self._graph.tensors[tensor].shared]
        fault = None
        for axes in product(*map(self._axes_of, own)):
            axes_of = dict(zip(own, axes, strict=True))
            try:
                self._several([task], axes_of, 2)
            except UnsupportedRelayError as err:
                fault = err
            else:
                return axes_of
        assert fault is not None
        raise fault

    def _axes_of(self, tensor: int) -> Sequence[int]:
        """Where the items of a tensor may be joined: all these axes are one order of elements."""
        if tensor in self._axes:
            return [self._axes[tensor]]
        shape = self._graph.tensors[tensor].shape
        return [axis for axis in range(max(1, len(shape))) if prod(shape[:axis]) == 1]

    def _several(
        self, tasks: Collection[int], axes: Mapping[int, int], num_items: int
    ) -> CutModule:
        """The module of tasks; UnsupportedRelayError if one is no sum along these axes."""
        graph = self._graph
        variables: dict[str, relay.Var] = {}
        read: dict[str, int] = {}
        exprs: dict[int, relay.Expr] = {}
        for task in sorted(tasks):
            own = {}
            for tensor in graph.task_inputs[task]:
                description = graph.tensors[tensor]
                name = f"{description.name}<{graph.tasks[task].name}"
                type_ = relay.TensorType(description.shape, description.dtype)
                own[name], read[name] = relay.Var(name, type_), tensor
            values, _ = self._bodies.instance(task, list(own.values()))
            exprs |= dict(zip(graph.task_outputs[task], values, strict=True))
            variables |= own
        exported = tuple(sorted(exprs))
        body = relay.Tuple([exprs[tensor] for tensor in exported])
        one = tvm.IRModule.from_expr(relay.Function(list(variables.values()), body))
        inputs = {name: axes[tensor] for name, tensor in read.items() if tensor in axes}
        zeros = [name for name, tensor in read.items() if self._is_zero(tensor)]
        imports = {ValueName(name): Import(tensor) for name, tensor in read.items()}
        return CutModule(sums_of_items(one, num_items, inputs, zeros), exported, imports)

    def _is_zero(self, tensor: int) -> bool:
        expression = self._bodies.expression(tensor)
        return isinstance(expression, relay.Call) and is_op_call(expression, "zeros")
