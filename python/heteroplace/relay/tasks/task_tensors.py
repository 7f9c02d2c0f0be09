"""Fused module -> the branch of each task and the tensors that it makes and reads decisions from.

Without routers a task is in no branch, and makes each of its outputs as a whole tensor. The part
`routing` extends `TaskTensors` for modules with routers (`parts/routing/tasks/routed_tasks.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import relay

from heteroplace.model.graph import TaskGraphBuilder
from heteroplace.registry import load_plugin
from heteroplace.relay.expressions import post_order, static_shape, tensor_types
from heteroplace.relay.router_ops import fused_router_op

Branch = tuple[str, int]
"""(router's name, branch)"""
Tensors = Mapping[relay.Expr, Sequence["str | None"]]
"""For each value the names of the tensors that it consists of; None: a constant."""


class TaskTensors:
    """Tensors of a fused function, while its tasks are added operands first."""

    def __init__(self, builder: TaskGraphBuilder) -> None:
        self._builder = builder

    def branch(self, call: relay.Call) -> Branch | None:
        """Return the innermost branch that a task is in, and note it."""
        return None

    def view(self, call: relay.Call, tensors: Tensors) -> list[str | None]:
        """Return the tensors of what moves no data (`router_ops.is_view`)."""
        raise AssertionError("a view without a router")

    def decisions_read(self, call: relay.Call, branch: Branch | None) -> list[str]:
        """Return the tensors by which a task knows how many rows there are, or whether any."""
        return []

    def add_outputs(self, call: relay.Call, name: str) -> list[str | None]:
        """Add what a task makes; return its tensors."""
        return [
            self._builder.add_tensor(name, static_shape(type_), type_.dtype)
            for type_ in tensor_types(call.checked_type)
        ]


def task_tensors(main: relay.Function, builder: TaskGraphBuilder) -> TaskTensors:
    """Return the tensors of a fused function; of one with routers as the part `routing` has them.

    Raises
    ------
    UnsupportedRelayError
        A branch takes rows that no dispatch has made.
    PluginError
        The function has routers, and the part is not installed.
    """
    if any(fused_router_op(node) is not None for node in post_order(main.body)):
        routed: TaskTensors = load_plugin("routers", "task-tensors")(main, builder)
        return routed
    return TaskTensors(builder)
