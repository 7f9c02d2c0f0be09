"""Neutral module -> the same, cut at the tensors of which a plan has several values.

Whoever reads such a tensor reads a variable instead, and what makes it is a result of the module:
which of its values a reader gets is for the plan to say (`versions`). Collectives are replaced by
what their members compute of variables, one for each member.

before ==> after, for tasks a and b on two lanes, and c that reads the sum

    %0 = a(%x); %1 = b(%x); %2 = heteroplace.all_reduce((%0, %1)); c(%2)
    ==>  (a(%x), b(%x), add(%sum<0, %sum<1), c(%sum.0))
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import tvm
from tvm import relay

from heteroplace.codegen.collectives import Read, member_outputs
from heteroplace.codegen.segments import ValueName
from heteroplace.codegen.versions import versioned_tensors
from heteroplace.errors import LoweringError
from heteroplace.model.collectives import CollectiveKind, collective_kind
from heteroplace.model.graph import TaskGraph
from heteroplace.relay.expressions import (
    leaves,
    post_order,
    rebuild,
    static_shape,
    task_of_span,
    task_span,
    tensor_types,
)

_Key = tuple[relay.Call, int]
"""A call, and which of its results."""


@dataclass(frozen=True)
class Import:
    """What a variable of a cut module stands for."""

    tensor: int
    member: int | None = None
    """Position of the member of a collective whose value it is; None: it is the reader's."""
    is_before: bool = False
    """Whether it is the value that the reader adds to."""


@dataclass(frozen=True)
class CutModule:
    """A module whose result is a tuple of `exported` tensors."""

    mod: tvm.IRModule
    exported: tuple[int, ...]
    imports: Mapping[ValueName, Import]
    """By name of the variable; the other variables are the model's inputs."""


def cut_module(
    mod: tvm.IRModule,
    graph: TaskGraph,
    members: Mapping[int, int],
    adding: Collection[int] = (),
) -> CutModule:
    """Cut a module.

    Parameters
    ----------
    mod
        Neutral module for any number of items; its spans name the tasks of `graph`.
    members
        For each collective of one shared tensor the number of devices.
    adding
        Tasks that add what they make to what is there.

    Raises
    ------
    LoweringError
        The module is not that of the graph, or has a collective that there are no kernels for.
    """
    return _Cutter(mod["main"], graph, members, adding).run()


class _Cutter:
    """One walk over `main`, operands first."""

    def __init__(
        self,
        main: relay.Function,
        graph: TaskGraph,
        members: Mapping[int, int],
        adding: Collection[int],
    ) -> None:
        self._main = main
        self._graph = graph
        self._members = members
        self._adding = adding
        self._task_id = {task.name: index for index, task in enumerate(graph.tasks)}
        self._versioned = versioned_tensors(graph)
        self._exported = self._tensors_exported()
        self._tensor_of = _tensors_of_results(main, graph, self._task_id)
        self._mapped: dict[relay.Expr, relay.Expr] = {}
        self._made: dict[int, relay.Expr] = {}
        self._variables: dict[ValueName, relay.Var] = {}
        self._imports = {
            ValueName(graph.tensors[state].name): Import(state) for state, _ in graph.updates
        }

    def run(self) -> CutModule:
        for node in post_order(self._main.body):
            if node not in self._mapped:
                self._visit(node)
        exported = tuple(sorted(self._made))
        body = relay.Tuple([self._made[tensor] for tensor in exported])
        parameters = [*self._main.params, *self._variables.values()]
        mod = tvm.IRModule.from_expr(relay.Function(parameters, body))
        return CutModule(relay.transform.InferType()(mod), exported, self._imports)

    def _tensors_exported(self) -> frozenset[int]:
        """What others than its own batch may read."""
        graph = self._graph
        found = {*self._versioned, *graph.outputs}
        for task, description in enumerate(graph.tasks):
            if collective_kind(description.op) is not None:
                found.update(graph.task_inputs[task])
        return frozenset(tensor for tensor in found if graph.tensors[tensor].producer is not None)

    def _visit(self, node: relay.Expr) -> None:
        task = self._task_id.get(task_of_span(node) or "") if isinstance(node, relay.Call) else None
        kind = None if task is None else collective_kind(self._graph.tasks[task].op)
        if task is not None and kind is not None:
            self._mapped[node] = self._collective(node, task, kind)
            return
        if isinstance(node, relay.TupleGetItem):
            whole = self._mapped[node.tuple_value]
            if isinstance(whole, relay.Tuple):  # of variables, or as it was
                self._mapped[node] = whole.fields[node.index]
                return
        rebuild([node], self._mapped)
        key = _key_of(node)
        tensor = None if key is None else self._tensor_of.get(key)
        if tensor is None or isinstance(node.checked_type, relay.TupleType):
            return
        if tensor in self._exported and tensor not in self._made:
            self._made[tensor] = self._added(tensor, self._mapped[node])
        if tensor in self._versioned:
            self._mapped[node] = self._variable(tensor, node.checked_type)

    def _added(self, tensor: int, value: relay.Expr) -> relay.Expr:
        """A shared tensor as its task makes it: added to what is there, if it does that."""
        description = self._graph.tensors[tensor]
        assert description.producer is not None
        if description.producer not in self._adding or not description.shared:
            return value
        span = task_span(self._graph.tasks[description.producer].name)
        name = ValueName(f"{description.name}<+")
        before = self._import(name, Import(tensor, is_before=True), self._type_of(tensor))
        added = relay.add(before, value)
        return relay.Call(added.op, added.args, added.attrs, None, span)

    def _collective(self, call: relay.Call, task: int, kind: CollectiveKind) -> relay.Expr:
        """What readers of a collective read; notes what members make."""
        graph, name = self._graph, self._graph.tasks[task].name
        reads, makes = graph.task_inputs[task], graph.task_outputs[task]
        self._check_order(call, task)
        types = [type_ for argument in call.args for type_ in tensor_types(argument.checked_type)]
        sources = [(tensor, position) for position, tensor in enumerate(reads)]
        if kind.reads == "each" and len(reads) == 1:
            count = self._members[task]
            sources, types = [(reads[0], member) for member in range(count)], types * count
        read = [
            Read(
                self._import(ValueName(f"{name}<{member}"), Import(tensor, member), type_),
                static_shape(type_),
            )
            for (tensor, member), type_ in zip(sources, types, strict=True)
        ]
        made_types = [self._type_of(tensor) for tensor in makes]
        if not graph.tensors[makes[0]].shared:  # of as many items as the module is for
            made_types = tensor_types(call.checked_type)
        if kind.name != "broadcast":
            shapes = [static_shape(type_) for type_ in made_types]
            outputs = member_outputs(kind.name, read, shapes, task_span(name))
            for tensor, value in zip(makes, outputs, strict=True):
                self._made[tensor] = self._added(tensor, value)
        found = [
            self._variable(tensor, type_) for tensor, type_ in zip(makes, made_types, strict=True)
        ]
        is_tuple = isinstance(call.checked_type, relay.TupleType)
        return relay.Tuple(found) if is_tuple else found[0]

    def _check_order(self, call: relay.Call, task: int) -> None:
        """Parts are summed and joined in the order of the arguments, which must be the graph's."""
        names = {self._graph.tensors[tensor].name: tensor for tensor in self._graph.inputs}
        found = []
        for leaf in (leaf for argument in call.args for leaf in leaves(argument)):
            key = _key_of(leaf)
            is_input = isinstance(leaf, relay.Var)
            found.append(names[leaf.name_hint] if is_input else self._tensor_of.get(key))
        if tuple(found) != self._graph.task_inputs[task]:
            raise LoweringError(
                f"collective {self._graph.tasks[task].name!r} reads {len(found)} values that are "
                f"not the inputs of its task, each once and in their order; give it computed "
                f"tensors, lane by lane"
            )

    def _type_of(self, tensor: int) -> relay.TensorType:
        description = self._graph.tensors[tensor]
        return relay.TensorType(description.shape, description.dtype)

    def _variable(self, tensor: int, type_: relay.TensorType) -> relay.Var:
        return self._import(ValueName(self._graph.tensors[tensor].name), Import(tensor), type_)

    def _import(self, name: ValueName, what: Import, type_: relay.TensorType) -> relay.Var:
        if name not in self._variables:
            self._variables[name] = relay.Var(name.name, type_)
            self._imports[name] = what
        return self._variables[name]


def _key_of(node: relay.Expr) -> _Key | None:
    """The call and the number of the result that an expression is; None: it is something else."""
    if isinstance(node, relay.Call):
        return node, 0
    if isinstance(node, relay.TupleGetItem) and isinstance(node.tuple_value, relay.Call):
        return node.tuple_value, node.index
    return None


def _tensors_of_results(
    main: relay.Function, graph: TaskGraph, task_id: Mapping[str, int]
) -> dict[_Key, int]:
    """The tensor that each result of a task's calls is, if it is one."""
    calls: dict[int, list[relay.Call]] = defaultdict(list)
    outside: dict[_Key, None] = dict.fromkeys(
        key for key in map(_key_of, leaves(main.body)) if key is not None
    )
    for node in post_order(main.body):
        if not isinstance(node, relay.Call):
            continue
        task = task_id.get(task_of_span(node) or "")
        if task is None:
            raise LoweringError(
                f"op {getattr(node.op, 'name', 'function')} belongs to no task of the plan: the "
                f"module was changed after it was planned; plan it again"
            )
        calls[task].append(node)
        for leaf in (leaf for argument in node.args for leaf in leaves(argument)):
            key = _key_of(leaf)
            if key is not None and task_id[task_of_span(key[0]) or ""] != task:
                outside[key] = None
    found: dict[_Key, int] = {}
    for task, members in calls.items():
        makes = graph.task_outputs[task]
        # Operands come first, so the last one is what the others are for.
        keys = [(members[-1], index) for index in range(len(tensor_types(members[-1].checked_type)))]
        if len(keys) != len(makes):
            own = set(members)
            keys = [key for key in outside if key[0] in own]
            keys.sort(key=lambda key: (members.index(key[0]), key[1]))
        if len(keys) != len(makes):
            raise LoweringError(
                f"task {graph.tasks[task].name!r} makes {len(makes)} tensors, and others read "
                f"{len(keys)} results of its ops; the module and its graph do not belong together"
            )
        found.update(zip(keys, makes, strict=True))
    return found
