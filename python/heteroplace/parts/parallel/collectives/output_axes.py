"""Neutral module -> where its inputs and outputs hold the items of a plan with versions.

A module for one item may have any number of rows in it (a microbatch). That outputs keep items
apart is proven by `rebatch`, on what makes those that are not shared; what is shared stands for all
items by what the graph says of it.
"""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.lower.items.combine import ItemTensor
from heteroplace.lower.items.item_axes import item_inputs, item_tensor
from heteroplace.lower.segments import ValueName
from heteroplace.model.collectives import collective_kind
from heteroplace.model.graph import TaskGraph
from heteroplace.parts.parallel.collectives.collective_steps import Read, member_outputs
from heteroplace.parts.parallel.collectives.task_bodies import TaskBodies
from heteroplace.relay.expressions import (
    leaves,
    post_order,
    rebuild,
    static_shape,
    task_of_span,
    tensor_types,
)
from heteroplace.relay.tasks.rebatch import rebatch


def item_axes(mod: tvm.IRModule, graph: TaskGraph, num_items: int) -> dict[ValueName, ItemTensor]:
    """Return, by name in the graph, how inputs and outputs hold the items of a plan.

    What a step of training tells of each item (its part of the loss) is along a new axis in front.

    Raises
    ------
    UnsupportedRelayError
        An op could mix items, or an input has another leading dimension; the message names it.
    """
    main = mod["main"]
    names, rows = item_inputs(main, graph)
    items: dict[ValueName, ItemTensor] = {}
    for parameter in main.params:
        (type_,) = tensor_types(parameter.checked_type)
        axis = 0 if parameter.name_hint in names and num_items > 1 else None
        name = ValueName(parameter.name_hint)
        items[name] = ItemTensor(static_shape(type_), type_.dtype, axis)
    if graph.updates:
        for tensor in graph.outputs:
            value = graph.tensors[tensor]
            if not value.shared:
                items[ValueName(value.name)] = ItemTensor((1, *value.shape), value.dtype, 0)
        return items
    bodies = TaskBodies(main, graph)
    outputs = {
        tensor: expression
        for tensor in graph.outputs
        if not graph.tensors[tensor].shared
        and (expression := bodies.expression(tensor)) is not None
    }
    if not outputs or num_items == 1:
        return items
    one = _PlainOps(main, graph).run(list(outputs.values()))
    more = rebatch(one, 2, [name for name in names if _has(one["main"], name)], rows)
    types = tensor_types(more["main"].body.checked_type)
    for tensor, type_ in zip(outputs, types, strict=True):
        description = graph.tensors[tensor]
        items[ValueName(description.name)] = item_tensor(
            description.shape, static_shape(type_), type_.dtype
        )
    return items


def _has(main: relay.Function, name: str) -> bool:
    return any(parameter.name_hint == name for parameter in main.params)


class _PlainOps:
    """The network of some results in plain ops, shared tensors that tasks make as inputs."""

    def __init__(self, main: relay.Function, graph: TaskGraph) -> None:
        self._main = main
        self._graph = graph
        self._task_id = {task.name: index for index, task in enumerate(graph.tasks)}

    def run(self, results: list[relay.Expr]) -> tvm.IRModule:
        whole = relay.Tuple(results)
        mapped: dict[relay.Expr, relay.Expr] = {}
        for node in post_order(whole):
            if isinstance(node, relay.Call):
                mapped[node] = self._call(node, mapped)
            elif isinstance(node, relay.TupleGetItem) and isinstance(
                mapped[node.tuple_value], relay.Tuple
            ):
                mapped[node] = mapped[node.tuple_value].fields[node.index]
            else:
                rebuild([node], mapped)
        body = mapped[whole]
        function = relay.Function(relay.analysis.free_vars(body), body)
        return relay.transform.InferType()(tvm.IRModule.from_expr(function))

    def _call(self, call: relay.Call, mapped: dict[relay.Expr, relay.Expr]) -> relay.Expr:
        task = self._task_id[task_of_span(call) or ""]
        kind = collective_kind(self._graph.tasks[task].op)
        is_tuple = isinstance(call.checked_type, relay.TupleType)
        if self._graph.is_made_once(task):
            types = tensor_types(call.checked_type)
            results: list[relay.Expr] = [relay.Var("shared", type_) for type_ in types]
        elif kind is not None:
            read = [leaf for argument in call.args for leaf in leaves(argument)]
            shapes = [
                self._graph.tensors[tensor].shape for tensor in self._graph.task_outputs[task]
            ]
            reads = [Read(_mapped(leaf, mapped), static_shape(leaf.checked_type)) for leaf in read]
            results = member_outputs(kind.name, reads, shapes, call.span)
        else:
            rebuild([call], mapped)
            return mapped[call]
        return relay.Tuple(results) if is_tuple else results[0]


def _mapped(leaf: relay.Expr, mapped: dict[relay.Expr, relay.Expr]) -> relay.Expr:
    """A tensor of the old network in the new one; fields of a call may have no node there."""
    if leaf in mapped:
        return mapped[leaf]
    whole = mapped[leaf.tuple_value]
    if isinstance(whole, relay.Tuple):
        return whole.fields[leaf.index]
    return relay.TupleGetItem(whole, leaf.index, leaf.span)
