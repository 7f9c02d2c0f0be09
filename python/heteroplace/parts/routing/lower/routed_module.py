"""Neutral routed module -> a module of regions that share nothing: each branch, and all the rest.

A region is what runs under one guard. Whatever it reads of another one is a variable of its own, so
that nothing that compiling adds (a changed layout, a common subexpression) can be made in one
region and read in another, which may run when the first one is skipped. Where rows are taken from a
routed buffer, and where the rows of all branches are joined, there is a variable too: no kernel
does that, as branches read and write their rows in place.

before ==> after, for a branch of router "r" that makes %y of %buffer

    %rows = take_branch((%buffer, ..)); %y = a(%rows); %joined = join_branches((%y, ..)); c(%joined)
    ==>  (a(%r:0), c(%r:joined), %buffer, ..)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tvm
from tvm import relay

from heteroplace.errors import LoweringError
from heteroplace.lower.segments import planned_task
from heteroplace.model.graph import TaskGraph
from heteroplace.parts.routing.relay.ops import reads_of
from heteroplace.relay.expressions import leaves, post_order, static_shape
from heteroplace.relay.router_ops import routing_kind

Branch = tuple[str, int]
"""(router's name, branch)"""


@dataclass(frozen=True)
class Taken:
    """A variable that is the rows of a branch."""

    branch: Branch
    buffer: int
    """Position of the routed buffer in the module's result."""


@dataclass(frozen=True)
class JoinedRows:
    """A variable that is a routed buffer with what all branches make."""

    router: str
    results: tuple[int, ...]
    """For each branch the position of its rows in the module's result."""


@dataclass(frozen=True)
class MadeBy:
    """What a router makes, as positions in the module's result."""

    seats: int
    loads: int
    offsets: int


@dataclass(frozen=True)
class RoutedModule:
    """A module whose result is a tuple: first the outputs of the model."""

    mod: tvm.IRModule
    num_outputs: int
    taken: Mapping[str, Taken]
    """By name of the variable, as the next two. Other variables are the model's inputs."""
    joined: Mapping[str, JoinedRows]
    read: Mapping[str, int]
    """Variables that are what another region makes, or an input of the model: its position in the
    result."""
    routers: Mapping[str, MadeBy]
    num_rows: Mapping[str, int]
    """By router, the rows of its buffers; those without buffers are not there."""


def cut_regions(mod: tvm.IRModule, graph: TaskGraph) -> RoutedModule:
    """Cut a module.

    Parameters
    ----------
    mod
        Neutral module; its spans name the tasks of `graph`.

    Raises
    ------
    LoweringError
        The module is not that of the graph.
    """
    return _Cutter(mod["main"], graph).run()


class _Cutter:
    """One walk over a neutral function, operands first."""

    def __init__(self, main: relay.Function, graph: TaskGraph) -> None:
        self._main = main
        self._branch_of_task = {task.name: task.branch for task in graph.tasks}
        self._inputs = {str(parameter.name_hint) for parameter in main.params}
        self._region: dict[relay.Expr, Branch | None] = {}
        """Of each call that is kept."""
        self._mapped: dict[relay.Expr, relay.Expr] = {}
        """Old expression to new one; of a call that no kernel does, what stands for it."""
        self._fields: dict[tuple[relay.Expr, int], relay.TupleGetItem] = {}
        self._exported: dict[relay.Expr, int] = {}
        self._variables: dict[str, relay.Var] = {}
        self._reads: dict[tuple[relay.Expr, Branch | None], relay.Var] = {}
        self._taken: dict[str, Taken] = {}
        self._joined: dict[str, JoinedRows] = {}
        self._read: dict[str, int] = {}
        self._routers: dict[str, MadeBy] = {}
        self._num_rows: dict[str, int] = {}

    def run(self) -> RoutedModule:
        for node in post_order(self._main.body):
            if isinstance(node, relay.Call):
                self._add(node)
        outputs = [self._outside(leaf) for leaf in leaves(self._main.body)]
        body = relay.Tuple([*outputs, *self._exported])
        shift = len(outputs)
        main = relay.Function([*self._main.params, *self._variables.values()], body)
        mod = relay.transform.InferType()(tvm.IRModule.from_expr(main))
        return RoutedModule(
            mod,
            shift,
            {name: Taken(each.branch, shift + each.buffer) for name, each in self._taken.items()},
            {
                name: JoinedRows(each.router, tuple(shift + at for at in each.results))
                for name, each in self._joined.items()
            },
            {name: shift + at for name, at in self._read.items()},
            {
                name: MadeBy(shift + each.seats, shift + each.loads, shift + each.offsets)
                for name, each in self._routers.items()
            },
            self._num_rows,
        )

    def _add(self, call: relay.Call) -> None:
        kind = routing_kind(call)
        if kind == "take_branch":
            self._take(call)
        elif kind == "join_branches":
            self._join(call)
        elif kind == "enter_branch":
            # The tensor itself; who reads it in the branch gets a variable for it.
            self._mapped[call] = self._whole(reads_of(call)[0])
        else:
            self._keep(call)
            if kind == "router":
                at = [self._export(self._field(call, index)) for index in range(3)]
                self._routers[str(call.attrs["name"])] = MadeBy(*at)

    def _take(self, call: relay.Call) -> None:
        branch = str(call.attrs["router"]), int(call.attrs["branch"])
        variable = self._variable(f"{branch[0]}:{branch[1]}", call.checked_type)
        buffer = reads_of(call)[0]
        self._taken[variable.name_hint] = Taken(branch, self._export(self._whole(buffer)))
        self._note_rows(branch[0], static_shape(buffer.checked_type)[0])
        self._mapped[call] = variable
        self._region[variable] = branch

    def _join(self, call: relay.Call) -> None:
        router = str(call.attrs["router"])
        *results, _, _ = reads_of(call)
        variable = self._variable(f"{router}:joined", call.checked_type)
        exported = tuple(self._export(self._whole(result)) for result in results)
        self._joined[variable.name_hint] = JoinedRows(router, exported)
        self._note_rows(router, int(call.attrs["rows"]))
        self._mapped[call] = variable
        # It is read where the router is, as any variable by whoever does.

    def _note_rows(self, router: str, rows: int) -> None:
        if self._num_rows.setdefault(router, rows) != rows:
            raise LoweringError(
                f"router {router!r} has buffers of {self._num_rows[router]} and of {rows} rows; "
                f"they must be alike"
            )

    def _keep(self, call: relay.Call) -> None:
        region = self._branch_of_task[planned_task(call, self._branch_of_task)]
        arguments = [self._argument(argument, region) for argument in call.args]
        new = relay.Call(call.op, arguments, call.attrs, call.type_args, call.span)
        self._mapped[call] = new
        self._region[new] = region

    def _argument(self, value: relay.Expr, region: Branch | None) -> relay.Expr:
        """What a call of a region reads."""
        if isinstance(value, relay.Constant):
            return value
        if isinstance(value, relay.Tuple):
            return relay.Tuple([self._argument(field, region) for field in value.fields])
        if isinstance(_type_of(value), relay.TupleType):
            return relay.Tuple([self._argument(leaf, region) for leaf in leaves(value)])
        whole = self._whole(value)
        if isinstance(whole, relay.Constant):
            return whole
        root = whole.tuple_value if isinstance(whole, relay.TupleGetItem) else whole
        is_own = root in self._region and self._region[root] == region
        is_plain = region is None and root not in self._region  # an input, or a joined buffer
        if is_own or is_plain:
            return whole
        if (whole, region) not in self._reads:
            hint = "all" if region is None else f"{region[0]}:{region[1]}"
            variable = self._variable(f"{hint} reads", _type_of(value))
            self._reads[whole, region] = variable
            self._read[variable.name_hint] = self._export(whole)
        return self._reads[whole, region]

    def _whole(self, value: relay.Expr) -> relay.Expr:
        """The new expression of a tensor."""
        if isinstance(value, (relay.Var, relay.Constant)):
            return value
        if isinstance(value, relay.TupleGetItem):
            if isinstance(value.tuple_value, relay.Tuple):
                return self._whole(value.tuple_value.fields[value.index])
            return self._field(value.tuple_value, value.index)
        return self._mapped[value]

    def _field(self, call: relay.Expr, index: int) -> relay.TupleGetItem:
        """A result of a call; the same object each time."""
        new = self._mapped[call]
        return self._fields.setdefault((new, index), relay.TupleGetItem(new, index, call.span))

    def _outside(self, value: relay.Expr) -> relay.Expr:
        whole = self._whole(value)
        if isinstance(whole, relay.Var) and whole.name_hint in self._taken:
            raise LoweringError("the model returns rows of a branch; combine them first")
        return whole

    def _export(self, value: relay.Expr) -> int:
        """Position among what regions hand to others."""
        return self._exported.setdefault(value, len(self._exported))

    def _variable(self, hint: str, type_: relay.TensorType) -> relay.Var:
        """A new variable; no other one, and no input of the model, has its name."""
        name = f"{hint} #{len(self._variables)}"
        while name in self._inputs:
            name += "'"
        self._variables[name] = relay.Var(name, type_)
        return self._variables[name]


def _type_of(value: relay.Expr) -> relay.Type:
    """The type of an expression; of a field that was made here, that of the field."""
    if isinstance(value, relay.TupleGetItem):
        return value.tuple_value.checked_type.fields[value.index]
    return value.checked_type
