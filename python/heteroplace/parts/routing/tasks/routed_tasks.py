"""Fused routed module -> what its tasks, tensors and buffers have of routers and branches.

What moves no data is no task (`is_view`): rows are taken from and joined in routed buffers where
they lie. So a dispatch makes a tensor for each branch, and a combine reads one of each.

before ==> after

    %buffer = dispatch(..); a(take_branch(%buffer, 0)); b(take_branch(%buffer, 1))
    ==>  dispatch makes t0, t1 in one buffer; a reads t0, in branch 0; b reads t1, in branch 1
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.model.graph import TaskGraphBuilder
from heteroplace.model.routed.routers import Router
from heteroplace.parts.routing.relay.ops import branch_around
from heteroplace.parts.routing.relay.router import router_options
from heteroplace.relay.expr_map import ExprMap
from heteroplace.relay.expressions import (
    leaves,
    post_order,
    static_shape,
    tensor_types,
    type_bytes,
)
from heteroplace.relay.router_ops import fused_router_op, routing_kind
from heteroplace.relay.tasks.task_tensors import Branch, TaskTensors, Tensors


class RoutedTasks(TaskTensors):
    """Branches and buffers of a fused function, while its tasks are added operands first."""

    def __init__(self, main: relay.Function, builder: TaskGraphBuilder) -> None:
        super().__init__(builder)
        self._ops: ExprMap[relay.Call] = ExprMap()
        """By call of a fused function, the op of ours that it is."""
        self._taken: dict[relay.Expr, set[int]] = defaultdict(set)
        """By dispatch, the branches that take rows of it."""
        self._rows: dict[Branch, int] = {}
        """Most rows of each branch."""
        self._buffer_rows: dict[str, int] = {}
        """By router."""
        self._joined: dict[tuple[relay.Expr, int], str] = {}
        """The buffer of what is joined."""
        self._branch: ExprMap[Branch | None] = ExprMap()
        """Of calls."""
        self._parent: dict[str, Branch | None] = {}
        """By router, the branch that it is in."""
        self._decision: dict[str, list[str]] = {}
        """By router, the tensors of its loads and offsets."""
        self._joins: ExprMap[str] = ExprMap()
        """By call that joins, its router."""
        self._shared: dict[tuple[str, int, int], str] = {}
        """Buffers of what branches make for themselves: by router, bytes of a row, and how many of
        these the branch had before."""
        self._counts: Counter[tuple[Branch, int]] = Counter()
        for node in post_order(main.body):
            op = fused_router_op(node)
            if op is not None:
                self._ops[node] = op
                self._scan(node, op)

    def branch(self, call: relay.Call) -> Branch | None:
        """Return the innermost branch that a task is in, and note it."""
        op = self._ops.get(call)
        if op is not None and routing_kind(op) == "router" and branch_around(op.attrs) is not None:
            innermost: Branch | None = _branch_of_op(op)
        elif op is not None and routing_kind(op) == "select":
            innermost = self._parent[str(op.attrs["router"])]
        else:
            around = dict.fromkeys(self._branch.get(_root(leaf)) for leaf in _reads(call))
            innermost = self._innermost([branch for branch in around if branch is not None])
        self._branch[call] = innermost
        return innermost

    def view(self, call: relay.Call, tensors: Tensors) -> list[str | None]:
        """Return the tensors of what moves no data."""
        op = self._ops[call]
        kind, reads = routing_kind(op), _reads(call)
        if kind == "join_branches":
            router = str(op.attrs["router"])
            self._branch[call] = self._parent[router]
            self._joins[call] = router
            return [tensor for leaf in reads[:-2] for tensor in _tensors_of(leaf, tensors)]
        branch = _branch_of_op(op)
        self._branch[call] = branch
        names_of = _tensors_of(reads[0], tensors)
        if kind == "enter_branch":
            return names_of
        return [names_of[sorted(self._taken[_root(reads[0])]).index(branch[1])]]

    def decisions_read(self, call: relay.Call, branch: Branch | None) -> list[str]:
        """Return the tensors by which a task knows how many rows there are, or whether any."""
        routers = [] if branch is None else [branch[0]]
        routers += [self._joins[leaf] for leaf in _reads(call) if leaf in self._joins]
        return [tensor for router in routers for tensor in self._decision[router]]

    def add_outputs(self, call: relay.Call, name: str) -> list[str | None]:
        """Add what a task makes; return its tensors."""
        op, branch = self._ops.get(call), self._branch[call]
        if op is not None and routing_kind(op) == "dispatch" and self._taken[call]:
            return self._add_rows(call, name)
        outputs: list[str | None] = []
        is_router = op is not None and routing_kind(op) == "router"
        for index, type_ in enumerate(tensor_types(call.checked_type)):
            buffer = None if is_router else self._buffer(call, index, type_, branch)
            shape = static_shape(type_)
            outputs.append(self._builder.add_tensor(name, shape, type_.dtype, buffer=buffer))
        if is_router:
            assert op is not None
            self._add_router(call, op, outputs)
        return outputs

    def _scan(self, call: relay.Call, op: relay.Call) -> None:
        kind, reads = routing_kind(op), _reads(call)
        if kind == "take_branch":
            branch = _branch_of_op(op)
            self._taken[_root(reads[0])].add(branch[1])
            self._rows[branch] = int(op.attrs["rows"])
            buffer = self._ops.get(_root(reads[0]))
            if buffer is None or routing_kind(buffer) != "dispatch":
                raise UnsupportedRelayError(
                    f"branch {branch[1]} of router {branch[0]!r} takes rows of what no dispatch "
                    f"has made"
                )
            self._buffer_rows[branch[0]] = int(buffer.attrs["rows"])
        elif kind == "join_branches":
            router, row_bytes = str(op.attrs["router"]), _row_bytes(call.checked_type)
            name = f"{router}.joined{len(set(self._joined.values()))}"
            self._builder.add_buffer(name, int(op.attrs["rows"]) * row_bytes)
            for leaf in reads[:-2]:
                self._joined[_root(leaf), _index(leaf)] = name

    def _innermost(self, branches: Sequence[Branch]) -> Branch | None:
        chains = [self._around(branch) for branch in branches]
        deepest = max(chains, key=len, default=[])
        if any(chain != deepest[len(deepest) - len(chain) :] for chain in chains):
            names = ", ".join(f"{branch} of {router!r}" for router, branch in branches)
            raise UnsupportedRelayError(
                f"an op reads values of several branches: {names}; combine them first"
            )
        return deepest[0] if deepest else None

    def _around(self, branch: Branch) -> list[Branch]:
        """A branch and those that it is in, the innermost first."""
        branches: list[Branch] = []
        around: Branch | None = branch
        while around is not None:
            branches.append(around)
            around = self._parent[around[0]]
        return branches

    def _add_rows(self, call: relay.Call, name: str) -> list[str | None]:
        """What a dispatch makes: rows of each branch, in one buffer."""
        rows, *cell = static_shape(call.checked_type)
        router = self._router_of(call)
        self._builder.add_buffer(name, rows * _row_bytes(call.checked_type))
        return [
            self._builder.add_tensor(
                name, (self._rows[router, branch], *cell), call.checked_type.dtype, buffer=name
            )
            for branch in sorted(self._taken[call])
        ]

    def _router_of(self, dispatch: relay.Call) -> str:
        seats = self._ops[_root(_reads(dispatch)[1])]  # what a router makes
        return str(seats.attrs["name"])

    def _buffer(
        self, call: relay.Call, index: int, type_: relay.TensorType, branch: Branch | None
    ) -> str | None:
        """The routed buffer that rows of a branch are in; None: it is no rows."""
        if (call, index) in self._joined:
            return self._joined[call, index]
        if branch is None or static_shape(type_)[:1] != (self._rows.get(branch),):
            return None
        row_bytes = _row_bytes(type_)
        key = (branch[0], row_bytes, self._counts[branch, row_bytes])
        self._counts[branch, row_bytes] += 1
        if key not in self._shared:
            self._shared[key] = f"{branch[0]}.rows{len(self._shared)}"
            size = self._buffer_rows[branch[0]] * row_bytes
            self._builder.add_buffer(self._shared[key], size)
        return self._shared[key]

    def _add_router(self, call: relay.Call, op: relay.Call, outputs: Sequence[str | None]) -> None:
        options = router_options(op.attrs)
        (num_cells, _) = static_shape(tensor_types(call.checked_type)[0])
        _, loads, offsets = outputs
        assert loads is not None and offsets is not None
        self._parent[options.name] = self._branch[call]
        self._decision[options.name] = [loads, offsets]
        router = Router(
            options.name,
            -1,
            -1,
            num_cells,
            options.top_k,
            # A single cell is a whole tensor, of which there is one.
            options.capacities if num_cells > 1 else ((1,),) * options.num_branches,
            options.overflow,
            options.quantum,
            self._branch[call],
        )
        self._builder.add_router(router, loads)


def _reads(call: relay.Call) -> list[relay.Expr]:
    """The tensors that a call of a fused function reads."""
    return [leaf for argument in call.args[:] for leaf in leaves(argument)]


def _root(leaf: relay.Expr) -> relay.Expr:
    """The call that makes a tensor; else the tensor itself."""
    return leaf.tuple_value if isinstance(leaf, relay.TupleGetItem) else leaf


def _index(leaf: relay.Expr) -> int:
    return leaf.index if isinstance(leaf, relay.TupleGetItem) else 0


def _tensors_of(leaf: relay.Expr, tensors: Tensors) -> list[str | None]:
    if isinstance(leaf, relay.TupleGetItem) and leaf not in tensors:
        return [tensors[leaf.tuple_value][leaf.index]]
    return list(tensors[leaf])


def _branch_of_op(op: relay.Call) -> Branch:
    return str(op.attrs["router"]), int(op.attrs["branch"])


def _row_bytes(type_: relay.TensorType) -> int:
    return type_bytes(type_) // static_shape(type_)[0]
