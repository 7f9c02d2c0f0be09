"""A function and the routers found in it -> the function with these routers.

Every value is written once, in the innermost branch whose own it is. What a branch reads from
outside enters it: rows by a dispatch that all branches of the router share, whole tensors by
`enter_branch`, weights and constants as they are.

    where(c, dense(x, w), base)
    ==>  seats, loads, offsets = router(c)
         rows = take_branch(dispatch(x, seats, offsets), loads, offsets)
         combine(join_branches(dense(rows, w)), seats, offsets, base)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from tvm import relay

from heteroplace.model.routed.capacities import default_capacities
from heteroplace.parts.routing.find.find_candidates import Branch, RouterCandidate
from heteroplace.parts.routing.find.find_graph import Graph, Region, parts
from heteroplace.parts.routing.relay.decision_ops import times_gate
from heteroplace.parts.routing.relay.ops import (
    BranchRows,
    branch_rows_of,
    combine,
    dispatch,
    enter_branch,
    join_branches,
    router,
    select,
    take_branch,
)
from heteroplace.parts.routing.relay.router import RouterOptions
from heteroplace.relay.expressions import rebuild, spanned


class _Router:
    """A router that is being written: what all its branches need."""

    def __init__(
        self,
        candidate: RouterCandidate,
        options: RouterOptions,
        mask: relay.Expr,
        around: tuple[relay.Expr, BranchRows] | None,
    ) -> None:
        self.candidate, self.options = candidate, options
        self.rows = options.rows(candidate.num_cells)
        self.seats, self.loads, self.offsets = router(mask, options, around=around)
        self.buffers: dict[relay.Expr, relay.Expr] = {}
        """Old value -> the buffer with its rows."""

    def of_branch(self, index: int) -> BranchRows:
        """Return the attributes of ops that read rows of one branch."""
        return branch_rows_of(self.options, index, self.candidate.num_cells)

    def entered(self, old: relay.Expr, value: relay.Expr, index: int) -> relay.Expr:
        """Return a tensor from around the branches as a branch reads it."""
        if self.candidate.num_cells == 1:
            return enter_branch(value, self.loads, self.options.name, index)
        if old not in self.buffers:
            self.buffers[old] = dispatch(value, self.seats, self.offsets, self.rows)
        return take_branch(self.buffers[old], self.loads, self.offsets, self.of_branch(index))


class _Scope(NamedTuple):
    """A branch that is being written, or all that is in no branch."""

    written: dict[relay.Expr, relay.Expr]
    """Old value, or one made of old values -> what it is here."""
    parent: _Scope | None = None
    router: _Router | None = None
    branch: int = 0

    @property
    def region(self) -> Region:
        """What belongs to the branch."""
        assert self.router is not None
        return self.router.candidate.branches[self.branch].region


class Rewriter:
    """Writes one function anew.

    Parameters
    ----------
    graph
        The function in which the candidates were found.
    candidates
        Each after those that its result is made of.
    weights
        Parameters that are no inputs; they enter no branch.
    names
        Of routers that the module has already.
    """

    def __init__(
        self,
        graph: Graph,
        candidates: Sequence[RouterCandidate],
        weights: Collection[relay.Var],
        names: Collection[str],
    ) -> None:
        self._graph, self._weights = graph, frozenset(weights)
        self._names = set(names)
        self._by_sink = {candidate.sink: candidate for candidate in candidates}

    def run(self) -> relay.Function:
        """Return the new function, untyped."""
        main = self._graph.main
        body = self._value(main.body, _Scope({}))
        return relay.Function(main.params, body, attrs=main.attrs)

    def _value(self, node: relay.Expr, scope: _Scope) -> relay.Expr:
        """Return what an old value, or one made of old values, is in a branch.

        Recursive over nested branches only.
        """
        for each in self._unwritten(node, scope):
            if self._is_outside(each, scope):
                scope.written[each] = self._entered(each, scope)
            elif each in self._by_sink:
                scope.written[each] = self._routed(self._by_sink[each], scope)
            else:
                rebuild([each], scope.written)
        return scope.written[node]

    def _unwritten(self, node: relay.Expr, scope: _Scope) -> list[relay.Expr]:
        """What has to be written for a value, operands first, down to what enters the branch."""
        order: list[relay.Expr] = []
        pending = [(node, False)]
        seen: set[relay.Expr] = set()
        while pending:
            each, is_ready = pending.pop()
            if is_ready:
                order.append(each)
            elif each not in seen and each not in scope.written:
                seen.add(each)
                pending.append((each, True))
                if each not in self._by_sink and not self._is_outside(each, scope):
                    pending += [(part, False) for part in reversed(parts(each))]
        return order

    def _is_outside(self, node: relay.Expr, scope: _Scope) -> bool:
        """An old value that is not of this branch; what the search made is where it is read."""
        is_old = node in self._graph.index or isinstance(node, relay.Var)
        return scope.parent is not None and is_old and node not in scope.region.nodes

    def _entered(self, node: relay.Expr, scope: _Scope) -> relay.Expr:
        """Return what a value from around a branch is in it."""
        assert scope.parent is not None and scope.router is not None
        value = self._value(node, scope.parent)
        if scope.router.candidate.num_cells > 1:
            is_read_whole = node not in scope.region.rows
        else:
            is_read_whole = isinstance(node, relay.Constant) or node in self._weights
        if is_read_whole:
            return value
        if not isinstance(node.checked_type, relay.TupleType):
            return scope.router.entered(node, value, scope.branch)
        fields = [relay.TupleGetItem(node, i) for i in range(len(node.checked_type.fields))]
        values = [relay.TupleGetItem(value, i) for i in range(len(fields))]
        return relay.Tuple(
            [
                scope.router.entered(old, new, scope.branch)
                for old, new in zip(fields, values, strict=True)
            ]
        )

    def _routed(self, candidate: RouterCandidate, scope: _Scope) -> relay.Expr:
        """Return what the result of a router is."""
        mask, around = self._value(candidate.mask, scope), None
        if scope.router is not None:
            around = scope.router.loads, scope.router.of_branch(scope.branch)
        written = _Router(candidate, self._options(candidate), mask, around)
        results = []
        for index, branch in enumerate(candidate.branches):
            inner = _Scope({}, scope, written, index)
            results.append(self._results(branch, inner))
        return self._combined(candidate, written, results, scope)

    def _options(self, candidate: RouterCandidate) -> RouterOptions:
        number = len(self._names)
        while f"router{number}" in self._names:
            number += 1
        name = f"router{number}"
        self._names.add(name)
        count = len(candidate.branches)
        sizes: tuple[tuple[int, ...], ...]
        if candidate.capacity is not None:
            sizes = ((candidate.capacity,),) * count
            return RouterOptions(name, sizes, candidate.top_k, "drop")
        sizes = (default_capacities(candidate.num_cells),) * count
        return RouterOptions(name, sizes, candidate.top_k)

    def _results(self, branch: Branch, scope: _Scope) -> list[relay.Expr]:
        """What a branch computes; a copy of what no op of it makes, so that it has a tensor."""
        if branch.build is not None:
            return [branch.build(self._value(branch.results[0], scope))]
        results: list[relay.Expr] = []
        for result in branch.results:
            value = self._value(result, scope)
            assert scope.router is not None
            if isinstance(result, relay.Constant) and scope.router.candidate.num_cells == 1:
                value = scope.router.entered(result, value, scope.branch)
            is_made = result in branch.region.nodes
            is_twice = any(value.same_as(other) for other in results)
            results.append(value if is_made and not is_twice else relay.copy(value))
        return results

    def _combined(
        self,
        candidate: RouterCandidate,
        written: _Router,
        results: Sequence[Sequence[relay.Expr]],
        scope: _Scope,
    ) -> relay.Expr:
        name, span = written.options.name, candidate.sink.span
        if candidate.num_cells == 1:
            if candidate.gates is not None:
                gates = self._value(candidate.gates, scope)
                type_ = candidate.sink.checked_type
                results = [
                    [times_gate(each, gates, branch, type_) for each in values]
                    for branch, values in enumerate(results)
                ]
            fields = [
                spanned(select(list(each), written.loads, name), span)
                for each in zip(*results, strict=True)
            ]
            is_tuple = isinstance(candidate.sink.checked_type, relay.TupleType)
            return relay.Tuple(fields, span) if is_tuple else fields[0]
        rows = [each[0] for each in results]
        joined = join_branches(rows, written.loads, written.offsets, name, written.rows)
        others = [
            None if each is None else self._value(each, scope)
            for each in (candidate.gates, candidate.residual, candidate.rest)
        ]
        gates, residual, rest = others
        combined = combine(joined, written.seats, written.offsets, gates, residual)
        combined = spanned(combined, span)
        return combined if rest is None else relay.add(rest, combined)
