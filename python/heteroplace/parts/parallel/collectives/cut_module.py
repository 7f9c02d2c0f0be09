"""Task graph + neutral module -> a module, cut at the tensors of which a plan has several values.

The graph says who reads what: a rewrite may have put collectives between tasks of the module, or
run tasks of it twice (`transforms`). The module says what tasks compute. Whoever reads a tensor
with several values reads a variable instead, and what makes it is a result of the module: which of
its values a reader gets is for the plan to say (`versions`). Collectives are what their members
compute of variables, one for each member.

before ==> after, for tasks a and b on two lanes, and c that reads the sum

    %0 = a(%x); %1 = b(%x); %2 = heteroplace.all_reduce((%0, %1)); c(%2)
    ==>  (a(%x), b(%x), add(%sum<0, %sum<1), c(%sum.0))
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import tvm
from tvm import relay

from heteroplace.lower.segments import ValueName
from heteroplace.model.collectives import CollectiveKind, collective_kind
from heteroplace.model.graph import TaskGraph
from heteroplace.model.step_values import versioned_tensors
from heteroplace.parts.parallel.collectives.collective_steps import Read, member_outputs
from heteroplace.parts.parallel.collectives.task_bodies import TaskBodies
from heteroplace.relay.expressions import static_shape, task_span, tensor_types


@dataclass(frozen=True)
class Import:
    """What a variable of a cut module stands for."""

    tensor: int
    member: tuple[int, int] | None = None
    """(collective, position of one of its members) whose value it is; None: it is the reader's."""
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
    joined: Collection[int] = (),
    in_readers: Collection[int] = (),
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
    joined
        Tensors that sums over several items read (`joined_sums`), which are results as well.
    in_readers
        Collectives that the tasks compute that read what they make (`sums_in_updates`).

    Raises
    ------
    LoweringError
        The module is not that of the graph, or has a collective that there are no kernels for.
    """
    return _Cutter(mod["main"], graph, members, adding, joined, in_readers).run()


ADD_UP = "add_up"
"""Op of tasks that only add what they read to what they make (`transforms.replicas`)."""


class _Cutter:
    """One walk over the tasks of the graph."""

    def __init__(
        self,
        main: relay.Function,
        graph: TaskGraph,
        members: Mapping[int, int],
        adding: Collection[int],
        joined: Collection[int],
        in_readers: Collection[int],
    ) -> None:
        self._main = main
        self._graph = graph
        self._members = members
        self._adding = adding
        self._in_readers = in_readers
        self._bodies = TaskBodies(main, graph)
        self._versioned = versioned_tensors(graph)
        self._exported = self._tensors_exported().union(joined)
        self._read: dict[int, relay.Expr] = {}
        """By tensor, what its readers read."""
        self._types: dict[int, relay.TensorType] = {}
        self._made: dict[int, relay.Expr] = {}
        """Results of the module."""
        self._variables: dict[ValueName, relay.Var] = {}
        self._imports = {
            ValueName(graph.tensors[state].name): Import(state) for state, _ in graph.updates
        }

    def run(self) -> CutModule:
        parameters = {parameter.name_hint: parameter for parameter in self._main.params}
        for tensor in self._graph.inputs:
            parameter = parameters[self._graph.tensors[tensor].name]
            self._read[tensor] = parameter
            (self._types[tensor],) = tensor_types(parameter.checked_type)
        for task, description in enumerate(self._graph.tasks):
            kind = collective_kind(description.op)
            if kind is None:
                self._task(task)
            else:
                self._collective(task, kind)
        exported = tuple(sorted(self._made))
        body = relay.Tuple([self._made[tensor] for tensor in exported])
        mod = tvm.IRModule.from_expr(
            relay.Function([*self._main.params, *self._variables.values()], body)
        )
        return CutModule(relay.transform.InferType()(mod), exported, self._imports)

    def _tensors_exported(self) -> frozenset[int]:
        """What others than its own batch may read."""
        graph = self._graph
        exported = {*self._versioned, *graph.outputs}
        for task, description in enumerate(graph.tasks):
            if collective_kind(description.op) is not None:
                exported.update(graph.task_inputs[task])
        return frozenset(
            tensor for tensor in exported if graph.tensors[tensor].producer is not None
        )

    def _task(self, task: int) -> None:
        """What a task of the module computes, of what it reads in the graph."""
        graph, description = self._graph, self._graph.tasks[task]
        reads = [self._read_by(task, tensor) for tensor in graph.task_inputs[task]]
        if description.op == ADD_UP:
            values, types = reads, [self._types[tensor] for tensor in graph.task_inputs[task]]
        else:
            values, types = self._bodies.instance(task, reads)
        for tensor, value, type_ in zip(graph.task_outputs[task], values, types, strict=True):
            self._note(tensor, value, type_)

    def _read_by(self, task: int, tensor: int) -> relay.Expr:
        """What a task reads: a variable of its own if it is shared.

        Else what changes the layout of a weight would do so once for all its readers, and the
        result would stay from the first of them to the last.
        """
        is_summed_here = self._graph.tensors[tensor].producer in self._in_readers
        has_versions = tensor in self._versioned and self._graph.tensors[tensor].shared
        if is_summed_here or not has_versions:
            return self._read[tensor]
        name = ValueName(f"{self._graph.tensors[tensor].name}<{self._graph.tasks[task].name}")
        return self._import(name, Import(tensor), self._types[tensor])

    def _note(self, tensor: int, value: relay.Expr, type_: relay.TensorType) -> None:
        self._types[tensor] = type_
        if tensor in self._exported:
            self._made[tensor] = self._added(tensor, value)
        versioned = tensor in self._versioned
        self._read[tensor] = self._variable(tensor) if versioned else value

    def _added(self, tensor: int, value: relay.Expr) -> relay.Expr:
        """A shared tensor as its task makes it: added to what is there, if it does that."""
        description = self._graph.tensors[tensor]
        assert description.producer is not None
        if description.producer not in self._adding or not description.shared:
            return value
        span = task_span(self._graph.tasks[description.producer].name)
        name = ValueName(f"{description.name}<+")
        before = self._import(name, Import(tensor, is_before=True), self._types[tensor])
        added = relay.add(before, value)
        return relay.Call(added.op, added.args, added.attrs, None, span)

    def _collective(self, task: int, kind: CollectiveKind) -> None:
        """What members make of what all bring; a broadcast is for others to copy."""
        graph, name = self._graph, self._graph.tasks[task].name
        reads, makes = graph.task_inputs[task], graph.task_outputs[task]
        self._bodies.check_order(task)
        sources = [(tensor, position) for position, tensor in enumerate(reads)]
        if kind.reads == "each" and len(reads) == 1:
            sources = [(reads[0], member) for member in range(self._members[task])]
        types = self._bodies.types_of_collective(task)
        if types is None:
            types = [self._type_in_graph(tensor) for tensor in makes]
        if kind.name == "broadcast":
            self._types[makes[0]] = types[0]
            self._read[makes[0]] = self._variable(makes[0])
            return
        read = []
        for tensor, member in sources:
            type_ = self._types[tensor]
            what = Import(tensor, (task, member))
            variable = self._import(ValueName(f"{name}<{member}"), what, type_)
            read.append(Read(variable, static_shape(type_)))
        shapes = [static_shape(type_) for type_ in types]
        if task in self._in_readers:
            for position, tensor in enumerate(makes):
                (reader,) = graph.tensors[tensor].consumers
                span = task_span(graph.tasks[reader].name)
                self._types[tensor] = types[position]
                self._read[tensor] = member_outputs(kind.name, read, shapes, span)[position]
            return
        outputs = member_outputs(kind.name, read, shapes, task_span(name))
        for tensor, value, type_ in zip(makes, outputs, types, strict=True):
            self._note(tensor, value, type_)

    def _type_in_graph(self, tensor: int) -> relay.TensorType:
        description = self._graph.tensors[tensor]
        return relay.TensorType(description.shape, description.dtype)

    def _variable(self, tensor: int) -> relay.Var:
        name = ValueName(self._graph.tensors[tensor].name)
        return self._import(name, Import(tensor), self._types[tensor])

    def _import(self, name: ValueName, what: Import, type_: relay.TensorType) -> relay.Var:
        if name not in self._variables:
            self._variables[name] = relay.Var(name.name, type_)
            self._imports[name] = what
        return self._variables[name]
