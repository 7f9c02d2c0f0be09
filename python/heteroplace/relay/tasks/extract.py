"""Relay module -> task graph: one task for each fused group, and the Relay function behind it.

A task is one group of TVM's own FuseOps (Moirai's rule that coarsening must not block a fusion,
with the compiler's fusion pass as the source of rules), found on the target-neutral module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

import tvm
from tvm import relay

from heteroplace.entries import load_entry
from heteroplace.errors import UnsupportedRelayError
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.op_traits.op_table import ops_where
from heteroplace.model.tasks import main_op
from heteroplace.relay.expr_map import ExprMap, ExprSet
from heteroplace.relay.expressions import (
    SharedFields,
    is_primitive_call,
    leaves,
    post_order,
    post_order_of_function,
    rebuild,
    static_shape,
    task_span,
    tensor_types,
    type_bytes,
)
from heteroplace.relay.router_ops import is_view
from heteroplace.relay.shard_spans import span_name
from heteroplace.relay.tasks.flops import call_flops
from heteroplace.relay.tasks.prepare import fuse
from heteroplace.relay.tasks.task_tensors import task_tensors

_RESHAPES_BEHIND = "heteroplace.relay.axes.reshapes_behind:ReshapesBehind"
"""Loaded for a module with products of matrices and views."""
_UNTRANSPOSED = "heteroplace.relay.axes.untransposed:Untransposed"
"""Loaded for a module with products of batches and transposes."""
_FIELDS_AS_SLICES = "heteroplace.relay.tasks.split_fields:FieldsAsSlices"
"""Loaded for a module that splits tensors."""
_VIEWS = ops_where(lambda op: op.kind == "view")
_PRODUCTS = ops_where(lambda op: op.kind == "product")


@dataclass(frozen=True)
class Extraction:
    """A task graph together with the Relay it was cut from."""

    graph: TaskGraph
    main: relay.Function
    """The fused function: every call in it calls the fused function of one task."""
    calls: tuple[relay.Call, ...]
    """For each task its call in `main`."""
    tensors: dict[relay.Expr, tuple[int | None, ...]]
    """For each value of `main` the tensors it consists of; None stands for a constant, or for
    state of sessions that is no tensor of the graph."""

    def with_graph(self, graph: TaskGraph) -> Extraction:
        """Return the same under another graph of these tasks, which may lack some inputs."""
        if len(graph.tensors) == len(self.graph.tensors):
            return replace(self, graph=graph)
        ids = {tensor.name: index for index, tensor in enumerate(graph.tensors)}
        new_ids = [ids.get(tensor.name) for tensor in self.graph.tensors]
        tensors = {
            value: tuple(None if tensor is None else new_ids[tensor] for tensor in own)
            for value, own in self.tensors.items()
        }
        return replace(self, graph=graph, tensors=tensors)


def extract(mod: tvm.IRModule, name: str = "model") -> Extraction:
    """Cut a prepared module (see `heteroplace.relay.tasks.prepare`) into tasks.

    Parameters
    ----------
    mod
        Neutral module whose only function is `main`, parameters bound, shapes static.
    name
        Name of the task graph.

    Raises
    ------
    UnsupportedRelayError
        Control flow, references, dynamic shapes, functions meant for an external compiler, or an
        output that is a constant.
    """
    ops = set(relay.analysis.list_op_freqs(mod))
    if ops & _VIEWS and ops & _PRODUCTS:
        mod = load_entry(_RESHAPES_BEHIND)()(mod)
    if ops.issuperset(("transpose", "nn.batch_matmul")):
        mod = load_entry(_UNTRANSPOSED)()(mod)
    if "split" in ops:
        mod = load_entry(_FIELDS_AS_SLICES)()(mod)
    return _Extractor(fuse(mod)["main"], name).run()


class _Extractor:
    """Walks a fused `main` once, operands first, and fills the builder."""

    def __init__(self, main: relay.Function, name: str) -> None:
        self._main = main
        self._builder = TaskGraphBuilder(name)
        self._counts: Counter[str] = Counter()
        self._tensors: ExprMap[list[str | None]] = ExprMap()
        self._calls: dict[str, relay.Call] = {}
        self._task_tensors = task_tensors(main, self._builder)

    def run(self) -> Extraction:
        for parameter in self._main.params:
            type_ = parameter.checked_type
            if not isinstance(type_, relay.TensorType):
                raise UnsupportedRelayError(
                    f"input {parameter.name_hint!r} of the model has type {type_}; inputs must be "
                    f"tensors: pass the fields of a tuple one by one"
                )
            tensor = self._builder.add_input(parameter.name_hint, static_shape(type_), type_.dtype)
            self._tensors[parameter] = [tensor]
        for node in post_order(self._main.body):
            self._visit(node)
        outputs = []
        for index, output in enumerate(self._tensors[self._main.body]):
            if output is None:
                raise UnsupportedRelayError(
                    f"output {index} of the model is a constant; no task makes it. Remove it from "
                    f"the model's outputs"
                )
            outputs.append(output)
        if not self._calls:
            raise UnsupportedRelayError(
                "the model computes nothing: it only hands its inputs on, and there is no task to "
                "place"
            )
        graph = self._builder.finalize(outputs)
        ids: dict[str | None, int | None] = {t.name: i for i, t in enumerate(graph.tensors)}
        ids[None] = None
        return Extraction(
            graph,
            self._main,
            tuple(self._calls[task.name] for task in graph.tasks),
            {node: tuple(ids[leaf] for leaf in leaves) for node, leaves in self._tensors.items()},
        )

    def _visit(self, node: relay.Expr) -> None:
        if isinstance(node, (relay.Function, relay.GlobalVar, tvm.ir.Op)):
            return
        if isinstance(node, relay.Var):
            if node not in self._tensors:
                raise UnsupportedRelayError(
                    f"the module binds variable {node.name_hint!r} by `let`; only plain dataflow "
                    f"can be cut into tasks: run relay.transform.ToGraphNormalForm() first"
                )
        elif isinstance(node, relay.Call):
            self._add_task(node)
        elif isinstance(node, relay.Constant):
            self._tensors[node] = [None]
        elif isinstance(node, relay.Tuple):
            self._tensors[node] = [leaf for field in node.fields for leaf in self._tensors[field]]
        elif isinstance(node, relay.TupleGetItem):
            fields = node.tuple_value.checked_type.fields
            first = sum(len(tensor_types(field)) for field in fields[: node.index])
            count = len(tensor_types(node.checked_type))
            self._tensors[node] = self._tensors[node.tuple_value][first : first + count]
        else:
            raise UnsupportedRelayError(
                f"the module holds a {type(node).__name__} expression; only dataflow (calls, "
                f"tuples, constants) can be cut into tasks: unroll loops and inline branches first"
            )

    def _add_task(self, call: relay.Call) -> None:
        if not is_primitive_call(call):
            raise UnsupportedRelayError(
                f"the module calls {_callee(call)}, which FuseOps put into no group (a function, a "
                f"partition for an external compiler, or recursion); only plain operators can be "
                f"placed: inline functions first, by relay.transform.Inline()"
            )
        if is_view(call):
            self._tensors[call] = self._task_tensors.view(call, self._tensors)
            return
        body = post_order_of_function(call.op)
        ops = [node for node in body if isinstance(node, relay.Call)]
        names = [str(op.op.name) for op in ops]
        name = self._name(names)
        branch = self._task_tensors.branch(call)
        args = call.args[:]
        reads = [leaf for argument in args for leaf in self._tensors[argument]]
        reads += self._task_tensors.decisions_read(call, branch)
        self._builder.add_task(
            Task(
                name,
                "+".join(names),
                tuple(_member_name(op, kind) for op, kind in zip(ops, names, strict=True)),
                flops=sum(call_flops(op) for op in ops),
                weight_bytes=_weight_bytes([*args, *body]),
                branch=branch,
            ),
            list(dict.fromkeys(leaf for leaf in reads if leaf is not None)),
        )
        self._calls[name] = call
        self._tensors[call] = self._task_tensors.add_outputs(call, name)

    def _name(self, ops: list[str]) -> str:
        names = [op.rpartition(".")[2] for op in ops]
        anchor = main_op(names)
        self._counts[anchor] += 1
        return f"{anchor}.{self._counts[anchor]}"


def _callee(call: relay.Call) -> str:
    """What a call calls, for messages."""
    if isinstance(call.op, relay.GlobalVar):
        return f"function {call.op.name_hint!r}"
    return str(getattr(call.op, "name", "a function"))


def _member_name(call: relay.Call, kind: str) -> str:
    """The name an op had in the user's model where the front end kept it, else its kind."""
    name = span_name(call)
    return f"{name}:{kind}" if name else kind


def _weight_bytes(nodes: list[relay.Expr]) -> int:
    constants = ExprSet(node for node in nodes if isinstance(node, relay.Constant))
    return sum(type_bytes(tensor_types(node.checked_type)[0]) for node in constants)


def neutral_module(extraction: Extraction, ends: Collection[int] = ()) -> tvm.IRModule:
    """Return the module under the tasks: ops not fused, the span of each call naming its task.

    A nested tuple of results is flattened, as the outputs of the task graph are.

    Parameters
    ----------
    ends
        Tasks that FuseOps would fuse with what follows them; it is kept from that by a
        `stop_fusion`, of which no kernel comes.
    """
    mapped: ExprMap[relay.Expr] = ExprMap()
    shared = SharedFields()
    task_of_call: ExprMap[int] = ExprMap()
    for index, call in enumerate(extraction.calls):
        task_of_call[call] = index
    for node in post_order(extraction.main.body):
        if node not in task_of_call and not is_view(node):
            rebuild([node], mapped, shared)
            continue
        task = task_of_call.get(node)
        name = "" if task is None else extraction.graph.tasks[task].name
        function = node.op
        inlined: ExprMap[relay.Expr] = ExprMap()
        for parameter, argument in zip(function.params[:], node.args[:], strict=True):
            inlined[parameter] = mapped[argument]
        span = None if task is None else task_span(name)
        rebuild(post_order_of_function(function), inlined, shared, span)
        result = inlined[function.body]
        if task in ends and isinstance(node.checked_type, relay.TensorType):
            stop = relay.annotation.stop_fusion(result)
            result = relay.Call(stop.op, stop.args, stop.attrs, None, task_span(name))
        mapped[node] = result
    body = extraction.main.body
    if isinstance(body.checked_type, relay.TupleType):
        fields = leaves(body)
        rebuild(fields, mapped, shared)
        mapped[body] = relay.Tuple([mapped[leaf] for leaf in fields])
    main = relay.Function(extraction.main.params, mapped[body])
    return relay.transform.InferType()(tvm.IRModule.from_expr(main))
