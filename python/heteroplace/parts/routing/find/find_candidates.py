"""A function -> places where a router may be: an `If`, a chain of `where`s, a sum of gated terms.

    where(c1, f(x), where(c2, g(x), base))     first that holds; base: cells of none
    add(add(base, g1 * f(x)), g2 * h(x))       gates that are provably 0 elsewhere
    sum(stack([f(x), h(x)], 1) * gates, 1)     likewise
    if (c) {f(x)} else {g(x)}                  whole tensors

What is not proven has its reason in the report, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from math import prod
from typing import NamedTuple

from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.parts.routing.find.find_graph import (
    Graph,
    Region,
    RowRegions,
    is_call,
    is_call_of,
    shown,
)
from heteroplace.parts.routing.find.find_masks import (
    chosen_first,
    column,
    is_chosen,
    joined,
    most_at_once,
    none_of,
    spread,
    two_way,
)
from heteroplace.parts.routing.find.find_support import Support, Supports, is_zero, typed
from heteroplace.relay.expressions import static_shape


class Branch(NamedTuple):
    """What a branch computes."""

    results: tuple[relay.Expr, ...]
    """One tensor; of whole tensors there may be several."""
    region: Region
    column: relay.Expr
    """int32 [cells, 1]: other than 0 where a cell takes it."""
    gate: relay.Expr | None = None
    """float32 [cells, 1, ..]: what the result is multiplied by."""
    support: Support | None = None
    """Of the gate or the condition."""
    build: Callable[[relay.Expr], relay.Expr] | None = None
    """Makes the result of the rows of `results[0]`; None: it is made as it was."""


class RouterCandidate(NamedTuple):
    """A router that was found. Expressions are of the old function, or made of its values."""

    sink: relay.Expr
    """What the router's result takes the place of."""
    kind: str
    """What was recognised, for the report."""
    branches: tuple[Branch, ...]
    mask: relay.Expr
    """int32 [cells, branches]"""
    top_k: int
    num_cells: int
    """1: whole tensors."""
    gates: relay.Expr | None = None
    """float32 [cells, branches]"""
    residual: relay.Expr | None = None
    """What cells of no branch get; None: 0."""
    rest: relay.Expr | None = None
    """What is added to all cells."""
    capacity: int | None = None
    """Rows of a branch, of which the model drops the others; None: it has all of its cells."""
    taken: frozenset[relay.Expr] = frozenset()
    """Values between the results of branches and the sink that there are no more."""

    def describe(self) -> str:
        """Return a line for the report."""
        sizes = [sum(map(is_call, branch.region.nodes)) for branch in self.branches]
        cells = "whole tensors" if self.num_cells == 1 else f"{self.num_cells} cells"
        return (
            f"{shown(self.sink)}: {self.kind} over {cells}, {len(sizes)} branches of "
            f"{', '.join(map(str, sizes))} ops, at most {self.top_k} for each cell"
        )


class Unproven(Exception):
    """Why something that looks like a router is left as it is; caught in this package."""


class Finder:
    """Looks for candidates in one function; `report` says what was not taken, and why."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.supports = Supports()
        self._regions: dict[int, RowRegions] = {}
        self.report: list[str] = []

    def candidates(self, only_if: bool = False) -> Iterator[RouterCandidate]:
        """Yield what is proven to be a router, each after those that its result is made of."""
        for node in self.graph.order:
            find = None if only_if and not isinstance(node, relay.If) else self._rule(node)
            if find is None:
                continue
            try:
                candidate = find(node)
            except Unproven as err:
                self.report.append(f"{shown(node)} is left as it is: {err}")
                continue
            if candidate is not None:
                yield candidate

    def row_region(self, result: relay.Expr, sink: Collection[relay.Expr], rows: int) -> Region:
        """Return what belongs to a branch that computes rows."""
        if rows not in self._regions:
            self._regions[rows] = RowRegions(self.graph, rows)
        return self._regions[rows].region(result, sink)

    def _rule(self, node: relay.Expr) -> Callable[[relay.Expr], RouterCandidate | None] | None:
        """What may be found with a value as its result; None: nothing."""
        if isinstance(node, relay.If):
            return self._branches
        if not is_call(node) or not isinstance(node.checked_type, relay.TensorType):
            return None
        if is_call_of(node, "where") and not self._is_inner(node, 2):
            return self._choices
        if is_call_of(node, "add") and not self._is_inner(node, 0, 1):
            return self._terms
        return self._stacked if is_call_of(node, "sum") else None

    def _is_inner(self, node: relay.Call, *places: int) -> bool:
        """Only a call of the same op reads it, at one of some places: the search starts there."""
        readers = self.graph.readers[node]
        return (
            len(readers) == 1
            and is_call_of(readers[0], node.op.name)
            and readers[0].checked_type == node.checked_type
            and any(readers[0].args[place].same_as(node) for place in places)
        )

    # --- whole tensors -------------------------------------------------------------------------

    def _branches(self, node: relay.If) -> RouterCandidate:
        mask = two_way(node.cond)
        branches = []
        for index, branch in enumerate((node.true_branch, node.false_branch)):
            fields = tuple(branch.fields) if isinstance(branch, relay.Tuple) else (branch,)
            for field in fields:
                if not isinstance(field.checked_type, relay.TensorType):
                    raise UnsupportedRelayError(
                        f"{shown(node)} makes a value of type {field.checked_type}; branches can "
                        f"make tensors and tuples of tensors"
                    )
            region = Region()
            if self.graph.is_read_only_by(branch, {node}):
                region = self.graph.whole_region(fields, {node, branch})
            branches.append(Branch(fields, region, column(mask, index)))
        return RouterCandidate(node, "an If", tuple(branches), mask, 1, 1)

    def _choice_of_tensors(self, node: relay.Call) -> RouterCandidate | None:
        condition, *results = node.args
        regions = [self.graph.whole_region((each,), {node}) for each in results]
        if any(each.checked_type != node.checked_type for each in results):
            raise Unproven("a side is of another shape than the result")
        mask = two_way(condition)
        branches = [
            Branch((result,), region, column(mask, index))
            for index, (result, region) in enumerate(zip(results, regions, strict=True))
        ]
        return RouterCandidate(node, "a where of one condition", tuple(branches), mask, 1, 1)

    # --- where over rows -----------------------------------------------------------------------

    def _choices(self, node: relay.Call) -> RouterCandidate | None:
        if not self.graph.whole_region(tuple(node.args[1:]), {node}).is_heavy:
            return None
        if prod(static_shape(node.args[0].checked_type)) == 1:
            return self._choice_of_tensors(node)
        shape = static_shape(node.checked_type)
        chain: list[relay.Call] = []
        base: relay.Expr = node
        while is_call_of(base, "where") and is_of_rows(base.args[0], shape):
            if chain and not self.graph.is_read_only_by(base, {chain[-1]}):
                break
            chain.append(base)
            base = base.args[2]
        if not chain:
            raise Unproven("its condition is not one for each row")
        regions = [self.row_region(each.args[1], {each}, shape[0]) for each in chain]
        last = self.row_region(base, {chain[-1]}, shape[0])
        sides = [*(each.args[1] for each in chain), *([base] if last.is_heavy else [])]
        if any(side.checked_type != node.checked_type for side in sides):
            raise Unproven("a side is of another shape than the result")
        columns = chosen_first([self.supports.of_condition(each.args[0]) for each in chain])
        branches = [
            Branch((each.args[1],), region, mask)
            for each, region, mask in zip(chain, regions, columns, strict=True)
        ]
        branches.append(Branch((base,), last, none_of(columns)))
        heavy = [branch for branch in branches if branch.region.is_heavy]
        if not heavy:
            raise Unproven(_why_light(branches))
        residual = self._light_sides(branches, base, shape)
        return self._of_rows(node, "a where over rows", heavy, 1, residual)

    def _light_sides(
        self, branches: Sequence[Branch], base: relay.Expr, shape: tuple[int, ...]
    ) -> relay.Expr | None:
        """What cells get whose side is not worth a branch: it is computed for all; None: 0."""
        residual: relay.Expr | None = None
        if not branches[-1].region.is_heavy and not is_zero(base):
            residual = spread(base, shape)
        for branch in branches[:-1]:
            if not branch.region.is_heavy:
                (value,) = branch.results
                other = residual or typed(relay.zeros(shape, value.checked_type.dtype))
                chosen = is_chosen(branch.column, len(shape))
                residual = typed(relay.where(chosen, value, other))
        return residual

    # --- gated terms ---------------------------------------------------------------------------

    def _terms(self, node: relay.Call) -> RouterCandidate | None:
        shape = static_shape(node.checked_type)
        branches: list[Branch] = []
        taken: list[relay.Expr] = []
        rest: relay.Expr | None = None
        open_gates: list[str] = []
        for term, reader in self._summands(node):
            gated = self._gated(term, reader, shape, open_gates)
            if gated is not None and gated.region.is_heavy:
                branches.append(gated)
                taken.append(term)
            else:
                rest = term if rest is None else typed(relay.add(rest, term))
        if branches:
            found_terms = self._of_gated(node, "a sum of gated terms", branches, rest)
            return found_terms._replace(taken=frozenset(taken))
        if open_gates:
            raise Unproven(open_gates[0])
        return None

    def _summands(self, top: relay.Call) -> Iterator[tuple[relay.Expr, relay.Expr]]:
        """The terms of a sum, from the left, each with the `add` that reads it."""
        pending = [(argument, top) for argument in reversed(top.args)]
        while pending:
            each, reader = pending.pop()
            is_inner = len(self.graph.readers[each]) == 1 and each.checked_type == top.checked_type
            if is_call_of(each, "add") and is_inner:
                pending += [(argument, each) for argument in reversed(each.args)]
            else:
                yield each, reader

    def _gated(
        self, term: relay.Expr, reader: relay.Expr, shape: tuple[int, ...], open_gates: list[str]
    ) -> Branch | None:
        """A term as gate times value, or as a where with 0; None: it is neither."""
        if not self.graph.is_read_only_by(term, {reader}) or not is_call(term):
            return None
        if is_call_of(term, "where") and is_zero(term.args[2]):
            condition, value, _ = term.args
            if is_of_rows(condition, shape) and value.checked_type == reader.checked_type:
                support = self.supports.of_condition(condition)
                region = self.row_region(value, {term}, shape[0])
                return Branch((value,), region, column(support.mask, 0), None, support)
        if not is_call_of(term, "multiply"):
            return None
        for gate, value in (list(term.args), list(reversed(term.args))):
            is_gate = is_of_rows(gate, shape) and gate.checked_type.dtype == "float32"
            if not is_gate or value.checked_type != reader.checked_type:
                continue
            region = self.row_region(value, {term}, shape[0])
            gate_support = self.supports.of(gate)
            if gate_support is not None:
                mask = column(gate_support.mask, 0)
                return Branch((value,), region, mask, gate, gate_support)
            if region.is_heavy:
                open_gates.append(f"the gate {shown(gate)} is not provably 0 for any cell")
        return None

    def _stacked(self, node: relay.Call) -> RouterCandidate | None:
        """sum(stack(values) * gates) along the axis on which they were stacked."""
        product, attrs = node.args[0], node.attrs
        if attrs.axis is None or len(attrs.axis) != 1 or attrs.exclude or attrs.keepdims:
            return None
        if not is_call_of(product, "multiply") or len(self.graph.readers[product]) > 1:
            return None
        shape = static_shape(product.checked_type)
        axis = int(attrs.axis[0]) % len(shape)
        for gates, stack in (list(product.args), list(reversed(product.args))):
            parts = self._stack_parts(stack, axis)
            if parts is None or not axis:
                continue
            regions = [self.row_region(value, {reader}, shape[0]) for value, reader in parts]
            if not all(region.is_heavy for region in regions):
                return None
            sizes = {0: shape[0], axis: len(parts)}
            expected = tuple(sizes.get(i, 1) for i in range(len(shape)))
            if (
                static_shape(gates.checked_type) != expected
                or gates.checked_type.dtype != "float32"
            ):
                raise Unproven(
                    f"its gates {shown(gates)} are not one float32 for each row and term"
                )
            matrix = typed(relay.reshape(gates, (shape[0], len(parts))))
            support = self.supports.of(matrix)
            if support is None:
                raise Unproven(f"its gates {shown(gates)} are not provably 0 for any cell")
            branches = tuple(
                Branch((value,), region, column(support.mask, index))
                for index, ((value, _), region) in enumerate(zip(parts, regions, strict=True))
            )
            top_k = min(support.most, len(parts))
            kind = "a sum of stacked terms"
            return RouterCandidate(node, kind, branches, support.mask, top_k, shape[0], matrix)
        return None

    def _stack_parts(
        self, stack: relay.Expr, axis: int
    ) -> list[tuple[relay.Expr, relay.Expr]] | None:
        """What was stacked along an axis, with who reads it: a `stack`, or joined slices."""
        if not is_call_of(stack, "stack", "concatenate") or len(self.graph.readers[stack]) > 1:
            return None
        fields = stack.args[0]
        rank = len(stack.checked_type.shape)
        if not isinstance(fields, relay.Tuple) or int(stack.attrs.axis) % rank != axis:
            return None
        if is_call_of(stack, "stack"):
            return [(field, fields) for field in fields.fields]
        parts = []
        for field in fields.fields:
            if not is_call_of(field, "expand_dims") or len(self.graph.readers[field]) > 1:
                return None
            if int(field.attrs.axis) % rank != axis or int(field.attrs.num_newaxis) != 1:
                return None
            parts.append((field.args[0], field))
        return parts

    # --- candidates ----------------------------------------------------------------------------

    def _of_gated(
        self, node: relay.Call, kind: str, branches: Sequence[Branch], rest: relay.Expr | None
    ) -> RouterCandidate:
        candidate = self._of_rows(node, kind, branches, _most(branches), None)
        if all(branch.gate is None for branch in branches):
            return candidate._replace(rest=rest)
        ones = typed(relay.ones((candidate.num_cells, 1), "float32"))
        gates = joined([ones if b.gate is None else column(b.gate, 0) for b in branches])
        return candidate._replace(gates=gates, rest=rest)

    def _of_rows(
        self,
        node: relay.Call,
        kind: str,
        branches: Sequence[Branch],
        top_k: int,
        residual: relay.Expr | None,
    ) -> RouterCandidate:
        rows = static_shape(node.checked_type)[0]
        mask = joined([branch.column for branch in branches])
        return RouterCandidate(node, kind, tuple(branches), mask, top_k, rows, residual=residual)


def is_of_rows(value: relay.Expr, shape: tuple[int, ...]) -> bool:
    """Say whether a value has one element for each row of a tensor of some shape; two rows on."""
    is_many = bool(shape) and shape[0] > 1
    return is_many and static_shape(value.checked_type) == (shape[0], *[1] * (len(shape) - 1))


def _most(branches: Sequence[Branch]) -> int:
    """How many branches a cell takes at most: fewer than all if one source decides."""
    return most_at_once([branch.support for branch in branches])


def _why_light(branches: Sequence[Branch]) -> str:
    """Why no branch has an op that is worth being done for fewer rows."""
    faults = [fault for branch in branches for fault in branch.region.faults]
    if faults:
        return f"no side is worth being done for some rows only: {'; '.join(faults)}"
    return "no side has an op that is worth being done for some rows only, and that no other reads"
