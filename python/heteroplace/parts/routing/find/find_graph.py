"""A function -> who reads what, and the part of it that only one value needs.

A branch is what nothing else reads. Of a branch for rows it is cut where an op does not compute
each row from the same row; what is above the cut is done for the chosen rows only.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import tvm
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.parts.routing.cell_analysis.cell_flow import CellLayout, cell_flow
from heteroplace.relay.expressions import post_order, static_shape, tensor_types
from heteroplace.relay.shard_spans import span_name
from heteroplace.relay.tasks.fold import children
from heteroplace.relay.tasks.rebatch import rebatch

_ROWS = CellLayout((0,), (1,))
_HEAVY = ("dense", "matmul", "conv", "einsum")
"""Ops with one of these words in their name are worth being done for fewer rows."""


@dataclass(frozen=True)
class Region:
    """What a branch computes, and what it reads."""

    nodes: frozenset[relay.Expr] = frozenset()
    """Calls, tuples and their fields that nothing outside reads, but for the result."""
    rows: tuple[relay.Expr, ...] = ()
    """Values from outside of which it reads rows."""
    whole: frozenset[relay.Expr] = frozenset()
    """Values from outside that it reads whole."""
    faults: tuple[str, ...] = ()
    """Why ops below are not part of it."""

    @property
    def is_heavy(self) -> bool:
        """It holds an op that is worth being left out."""
        names = [node.op.name for node in self.nodes if is_call(node)]
        return any(word in name for name in names for word in _HEAVY)


@dataclass
class Graph:
    """The values of a function in which types are inferred."""

    main: relay.Function
    order: list[relay.Expr] = field(init=False)
    index: dict[relay.Expr, int] = field(init=False)
    readers: dict[relay.Expr, list[relay.Expr]] = field(init=False)
    """For each value who reads it, as often as it does; the function reads its result."""

    def __post_init__(self) -> None:
        self.order = [
            each for each in post_order(self.main.body) if not isinstance(each, tvm.ir.Op)
        ]
        self.index = {node: position for position, node in enumerate(self.order)}
        self.readers = {node: [] for node in self.order}
        for node in self.order:
            for child in parts(node):
                self.readers[child].append(node)
        self.readers[self.main.body].append(self.main)

    def is_read_only_by(self, node: relay.Expr, readers: Collection[relay.Expr]) -> bool:
        """Say whether nothing but some values reads a value."""
        return all(reader in readers for reader in self.readers[node])

    def whole_region(self, results: Sequence[relay.Expr], sink: Collection[relay.Expr]) -> Region:
        """Return all that only `results`, of the readers `sink`, need; rows are not told apart."""
        nodes: set[relay.Expr] = set()
        own = set(sink)
        outside: set[relay.Expr] = set()
        seen = set(results)
        pending = [-self.index[each] for each in seen]
        heapq.heapify(pending)
        while pending:
            node = self.order[-heapq.heappop(pending)]
            is_leaf = isinstance(node, (relay.Constant, relay.Var, relay.Function))
            if is_leaf or not self.is_read_only_by(node, own):
                outside.add(node)
                continue
            nodes.add(node)
            own.add(node)
            for child in parts(node):
                if child not in seen:
                    seen.add(child)
                    heapq.heappush(pending, -self.index[child])
        return Region(frozenset(nodes), (), frozenset(outside))


class RowRegions:
    """Finds the regions of branches that compute rows; each kind of op is judged once."""

    def __init__(self, graph: Graph, num_rows: int) -> None:
        self._graph = graph
        self._num_rows = num_rows
        self._judged: dict[str, tuple[bool, ...] | str] = {}

    def region(self, result: relay.Expr, sink: Collection[relay.Expr]) -> Region:
        """Return a part above which `result` is computed row by row, as large as can be.

        What it reads has one form in a branch: rows, or the whole. Of a value that is read both
        ways, what reads it whole is left outside.
        """
        cut: set[relay.Expr] = set()
        while True:
            region, whole_readers = self._region(result, sink, cut)
            both = region.whole.intersection(region.rows)
            if not both:
                return region
            cut.update(reader for value in both for reader in whole_readers[value])

    def _region(
        self, result: relay.Expr, sink: Collection[relay.Expr], cut: Collection[relay.Expr]
    ) -> tuple[Region, dict[relay.Expr, list[relay.Expr]]]:
        """The largest such part without the values `cut`, and who reads what it reads whole."""
        nodes: set[relay.Expr] = set()
        own = set(sink)
        rows: list[relay.Expr] = []
        whole: dict[relay.Expr, list[relay.Expr]] = {}
        faults: list[str] = []
        heap, seen = [-self._graph.index[result]], {result}
        while heap:
            node = self._graph.order[-heapq.heappop(heap)]
            is_own = self._graph.is_read_only_by(node, own) and not (node in whole or node in cut)
            reads = self._reads(node) if is_own else None
            if isinstance(reads, str):
                faults.append(reads)
            if reads is None or isinstance(reads, str):
                rows.append(node)
                continue
            row_reads, whole_reads, tuples = reads
            nodes.update([node, *tuples])
            own.update([node, *tuples])
            for each in whole_reads:
                whole.setdefault(each, []).append(node)
            for child in row_reads:
                if child not in seen:
                    seen.add(child)
                    heapq.heappush(heap, -self._graph.index[child])
        whole_only = frozenset(whole.keys() - nodes)
        return Region(frozenset(nodes), tuple(rows), whole_only, tuple(faults)), whole

    def _reads(
        self, node: relay.Expr
    ) -> tuple[list[relay.Expr], list[relay.Expr], list[relay.Expr]] | str | None:
        """What a value reads by rows, whole, and tuples on the way; or why it mixes rows."""
        if isinstance(node, relay.TupleGetItem):
            return ([node.tuple_value], [], []) if is_call(node.tuple_value) else None
        if not is_call(node):
            return None
        tuples = [argument for argument in node.args if isinstance(argument, relay.Tuple)]
        if any(len(self._graph.readers[each]) > 1 for each in tuples):
            return f"{shown(node)} reads a tuple that others read too"
        leaves = [
            leaf
            for argument in node.args
            for leaf in (argument.fields if isinstance(argument, relay.Tuple) else [argument])
        ]
        if not all(isinstance(leaf.checked_type, relay.TensorType) for leaf in leaves):
            return f"{shown(node)} reads a tuple"
        roles = self._roles(node)
        if isinstance(roles, str):
            return f"{shown(node)} {roles}"
        pairs = list(zip(leaves, roles, strict=True))
        if any(role and (leaf, False) in pairs for leaf, role in pairs):
            return f"{shown(node)} reads one value both row by row and whole"
        return (
            [leaf for leaf, role in pairs if role],
            [x for x, role in pairs if not role],
            tuples,
        )

    def _roles(self, call: relay.Call) -> tuple[bool, ...] | str:
        """For each tensor that an op reads whether it does so row by row; or why it does not."""
        arguments: list[relay.Expr] = []
        variables: list[relay.Var] = []
        for argument in call.args:
            types = tensor_types(argument.checked_type)
            new = [relay.Var(f"x{len(variables) + i}", type_) for i, type_ in enumerate(types)]
            variables += new
            arguments.append(relay.Tuple(new) if isinstance(argument, relay.Tuple) else new[0])
        function = relay.Function(variables, relay.Call(call.op, arguments, call.attrs))
        key = function.astext(show_meta_data=True)
        if key not in self._judged:
            self._judged[key] = self._judge(function)
        return self._judged[key]

    def _judge(self, function: relay.Function) -> tuple[bool, ...] | str:
        module = relay.transform.InferType()(tvm.IRModule.from_expr(function))
        main, count = module["main"], self._num_rows
        results = tensor_types(main.body.checked_type)
        shapes = [static_shape(parameter.checked_type) for parameter in main.params]
        if any(static_shape(type_)[:1] != (count,) for type_ in results):
            return f"makes {static_shape(results[0])}, not {count} rows"
        places = [i for i, shape in enumerate(shapes) if shape[:1] == (count,)]
        reason = f"reads no {count} rows"
        # All that may be rows first: what has another number for each row must be.
        for chosen in sorted(range(1, 2 ** len(places)), key=lambda bits: -bits.bit_count()):
            roles = [False] * len(shapes)
            for bit, place in enumerate(places):
                roles[place] = bool(chosen >> bit & 1)
            fault = _rows_fault(module, roles, count)
            if not fault:
                return tuple(roles)
            reason = fault
        return reason


def _rows_fault(module: tvm.IRModule, roles: list[bool], count: int) -> str:
    """Why an op does not compute row i of its results from rows i and from what has no rows.

    Two proofs: no row reaches another, and with twice as many rows of these operands it is the
    same op, so that no place of a row has a meaning of its own.
    """
    main = module["main"]
    sources = {parameter: _ROWS for parameter, role in zip(main.params, roles, strict=True) if role}
    types = tensor_types(main.body.checked_type)
    results = [main.body]
    if isinstance(main.body.checked_type, relay.TupleType):
        results = [relay.TupleGetItem(main.body, index) for index in range(len(types))]
        body = relay.Tuple(results)
        module = tvm.IRModule.from_expr(relay.Function(main.params, body))
        main = relay.transform.InferType()(module)["main"]
        results = list(main.body.fields)
        sources = {p: _ROWS for p, role in zip(main.params, roles, strict=True) if role}
    if any(cell_flow(result, sources, _ROWS).kind != "keep" for result in results):
        return "mixes the rows"
    names = [parameter.name_hint for parameter in sources]
    try:
        rebatch(tvm.IRModule.from_expr(main), 2, names, count)
    except UnsupportedRelayError as err:
        return f"may not compute each row alone ({err})"
    return ""


def parts(node: relay.Expr) -> list[relay.Expr]:
    """Return the values that a value is made of; the body of a function is no part of it."""
    return [] if isinstance(node, relay.Function) else children(node)


def is_call(node: relay.Expr) -> bool:
    """Say whether a value is a call of an op."""
    return isinstance(node, relay.Call) and isinstance(node.op, tvm.ir.Op)


def is_call_of(node: relay.Expr, *names: str) -> bool:
    """Say whether a value is a call of one of some ops."""
    return is_call(node) and node.op.name in names


def shown(node: relay.Expr) -> str:
    """Return how reports name a value: its op, and the name it has in the user's model."""
    name = span_name(node)
    op = node.op.name if is_call(node) else type(node).__name__
    return f"{op} '{name}'" if name else str(op)
