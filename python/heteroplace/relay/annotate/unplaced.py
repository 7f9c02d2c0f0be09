"""A placed module -> the same annotations without the plan, as if another pass had written them."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relay

from heteroplace.model.graph import TaskGraph
from heteroplace.relay.annotate.devices import is_barrier
from heteroplace.relay.expressions import post_order, rebuild, task_of_span
from heteroplace.relay.module_source import INPUTS_ATTRIBUTE, SOURCE_ATTRIBUTE, VERIFY_ATTRIBUTE
from heteroplace.relay.output_names import GRAPH_ATTRIBUTE, OUTPUTS_ATTRIBUTE

_STAYING = (
    *(GRAPH_ATTRIBUTE, OUTPUTS_ATTRIBUTE),
    *(SOURCE_ATTRIBUTE, VERIFY_ATTRIBUTE, INPUTS_ATTRIBUTE),
)
"""Attributes of `main` that say nothing of a plan: names, the ONNX model, inputs to compare on."""


def unplaced(mod: tvm.IRModule, graph: TaskGraph) -> tvm.IRModule:
    """Return a module that is annotated as `mod` and carries no plan and no kernels.

    Parameters
    ----------
    graph
        The tasks of the plan that `mod` carries. They know the layers of the ops, whose spans name
        tasks.
    """
    main = mod["main"]
    for name in list(main.attrs.keys() if main.attrs else ()):
        if name.startswith("heteroplace_") and name not in _STAYING:
            main = main.without_attr(name)
    nodes = post_order(main.body)
    spans = _layer_spans(nodes, graph)
    mapped: dict[relay.Expr, relay.Expr] = {param: param for param in main.params}

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if old not in spans:
            return new
        return relay.Call(new.op, new.args, new.attrs, new.type_args, spans[old])

    rebuild(nodes, mapped, rewrite)
    body = mapped[main.body]
    function = relay.Function(main.params, body, main.ret_type, main.type_params, main.attrs)
    return tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): function})


def _layer_spans(
    nodes: list[relay.Expr], graph: TaskGraph
) -> Mapping[relay.Expr, relay.Span | None]:
    """For each op of a task the span of its layer; None: the op has none."""
    ops: dict[str, list[relay.Call]] = {task.name: [] for task in graph.tasks}
    for node in nodes:
        name = task_of_span(node) if isinstance(node, relay.Call) else None
        if name is not None and not is_barrier(node):
            ops[name].append(node)
    spans: dict[relay.Expr, relay.Span | None] = {}
    for task in graph.tasks:
        kinds = [op.op.name for op in ops[task.name]]
        members = [member.rpartition(":") for member in task.members]
        # Ops that another pass has added or left out have no layer that is certain.
        is_same = kinds == [kind for _, _, kind in members]
        layers = [layer for layer, _, _ in members] if is_same else [""] * len(kinds)
        for op, layer in zip(ops[task.name], layers, strict=True):
            span = relay.Span(relay.SourceName(layer), 0, 0, 0, 0) if layer else None
            spans[op] = span
    return spans
