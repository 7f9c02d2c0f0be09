"""A function -> routers written as products with one-hot matrices (GShard's dispatch and combine).

    seats = cumsum(mask, 0) * mask                      [T, E], 1-based
    D = cast(equal(seats[:, :, 1], [1, .., cap]))       [T, E, cap]
    y = einsum("tec,ecd->td", D * gates, f(einsum("tec,td->ecd", D, x)))

`f` works on each expert's matrix with that expert's weights: products, and ops element by element.
Tokens behind the capacity of an expert are dropped, in their order, which is what a router that
drops does. Lepikhin et al., "GShard" (ICLR 2021), algorithm 1. Products may be einsums, or dense
products of the same tensors in two axes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tvm import relay

from heteroplace.parts.routing.find.find_candidates import (
    Branch,
    Finder,
    RouterCandidate,
    Unproven,
)
from heteroplace.parts.routing.find.find_experts import Experts, letters_of
from heteroplace.parts.routing.find.find_graph import Region, is_call_of, parts, shown
from heteroplace.parts.routing.find.find_masks import column
from heteroplace.parts.routing.find.find_seats import bare, seats_of
from heteroplace.parts.routing.find.find_support import typed
from heteroplace.relay.expressions import static_shape

_STACKED_RANK = 3


def one_hot_dispatches(finder: Finder) -> tuple[list[RouterCandidate], list[str]]:
    """Return the routers that are written as one-hot products, and what is not proven to be one."""
    dispatches, left = [], []
    for node in finder.graph.order:
        ends = _combine_ends(node)
        if ends is None:
            continue
        try:
            dispatches.append(_dispatch_of(finder, node, *ends))
        except Unproven as err:
            left.append(f"{shown(node)} is left as it is: {err}")
    return dispatches, left


def _dispatch_of(
    finder: Finder, node: relay.Call, weights: relay.Expr, out: relay.Expr
) -> RouterCandidate:
    """The router whose result is a product of seats with what experts make."""
    combined = seats_of(weights)
    if combined is None:
        raise Unproven("its matrix is not provably one-hot over the seats of experts")
    begins = [each for each in _above(out) if _dispatch_ends(each) is not None]
    if len(begins) != 1:
        raise Unproven("what experts read is not one product of seats with tokens")
    begin = begins[0]
    ends = _dispatch_ends(begin)
    assert ends is not None  # by the choice of `begins`
    dispatched, x = seats_of(ends[0]), ends[1]
    if dispatched is None or dispatched.factors:
        raise Unproven("tokens are not dispatched by a one-hot matrix alone")
    if not bare(dispatched.mask).same_as(bare(combined.mask)):
        raise Unproven("tokens come back by other seats than they went by")
    if dispatched.capacity != combined.capacity:
        raise Unproven("tokens come back by other seats than they went by")
    dtypes = {factor.checked_type.dtype for factor in combined.factors} - {"float32"}
    if dtypes:
        raise Unproven(f"its gates are {', '.join(sorted(dtypes))}, not float32")
    experts = Experts(begin, out)
    between = experts.nodes()
    if not all(
        finder.graph.is_read_only_by(n, {*between, node, *_path(node, out)}) for n in between
    ):
        raise Unproven("others read what experts make")
    num_tokens, num_experts = static_shape(combined.mask.checked_type)
    support = finder.supports.of(combined.mask)
    mask = typed(relay.cast(combined.mask, "int32"))
    nodes = Region(frozenset(between), (x,))
    branches = []
    for index in range(num_experts):
        build = _builder(experts, index)
        branches.append(Branch((x,), nodes, column(mask, index), build=build))
    gates = None
    for factor in combined.factors:
        part = typed(relay.reshape(factor, (num_tokens, num_experts)))
        gates = part if gates is None else typed(relay.multiply(gates, part))
    return RouterCandidate(
        node,
        "a one-hot dispatch",
        tuple(branches),
        mask,
        min(num_experts, num_experts if support is None else support.most),
        num_tokens,
        gates,
        capacity=min(combined.capacity, num_tokens),
    )


def _builder(experts: Experts, index: int) -> Callable[[relay.Expr], relay.Expr]:
    return lambda rows: experts.of(index, rows)


# --- products ----------------------------------------------------------------------------------


def _combine_ends(node: relay.Expr) -> tuple[relay.Expr, relay.Expr] | None:
    """Of y[t, d] = sum of W[t, e, c] * v[e, c, d]: W and v."""
    letters = letters_of(node)
    if letters is not None:
        for first, second, result, swap in (
            (letters[0], letters[1], letters[2], False),
            (letters[1], letters[0], letters[2], True),
        ):
            is_fit = len(first) == len(second) == _STACKED_RANK and len(set(first + second)) == 4
            if is_fit and first[1:] == second[:2] and result == first[0] + second[2]:
                ends = list(node.args[0].fields)
                return (ends[1], ends[0]) if swap else (ends[0], ends[1])
    if is_call_of(node, "nn.dense"):
        weights, values = _merged(node.args[0]), _turned(node.args[1])
        values = None if values is None else _merged_rows(values)
        if weights is None or values is None:
            return None
        if static_shape(weights.checked_type)[1:] == static_shape(values.checked_type)[:2]:
            return weights, values
    return None


def _dispatch_ends(node: relay.Expr) -> tuple[relay.Expr, relay.Expr] | None:
    """Of v[e, c, d] = sum of D[t, e, c] * x[t, d]: D and x."""
    letters = letters_of(node)
    if letters is not None:
        for first, second, result, swap in (
            (letters[0], letters[1], letters[2], False),
            (letters[1], letters[0], letters[2], True),
        ):
            is_fit = len(first) == _STACKED_RANK and len(second) == 2
            if is_fit and first[0] == second[0] and result == first[1:] + second[1]:
                ends = list(node.args[0].fields)
                return (ends[1], ends[0]) if swap else (ends[0], ends[1])
    if is_call_of(node, "reshape") and len(static_shape(node.checked_type)) == _STACKED_RANK:
        product = node.args[0]
        if is_call_of(product, "nn.dense"):
            weights, x = _turned(product.args[0]), _turned(product.args[1])
            weights = None if weights is None else _merged(weights)
            if weights is None or x is None:
                return None
            if static_shape(weights.checked_type)[1:] == static_shape(node.checked_type)[:2]:
                return weights, x
    return None


def _merged(matrix: relay.Expr) -> relay.Expr | None:
    """Of a matrix [t, e * c] that was [t, e, c]: that."""
    if not is_call_of(matrix, "reshape"):
        return None
    before, after = static_shape(matrix.args[0].checked_type), static_shape(matrix.checked_type)
    is_fit = len(before) == _STACKED_RANK and after == (before[0], prod(before[1:]))
    return matrix.args[0] if is_fit else None


def _merged_rows(matrix: relay.Expr) -> relay.Expr | None:
    """Of a matrix [e * c, d] that was [e, c, d]: that."""
    if not is_call_of(matrix, "reshape"):
        return None
    before, after = static_shape(matrix.args[0].checked_type), static_shape(matrix.checked_type)
    is_fit = len(before) == _STACKED_RANK and after == (prod(before[:2]), before[2])
    return matrix.args[0] if is_fit else None


def _turned(matrix: relay.Expr) -> relay.Expr | None:
    """Of a transposed matrix: the matrix."""
    if is_call_of(matrix, "transpose") and len(matrix.checked_type.shape) == 2:
        axes = matrix.attrs.axes
        if axes is None or [int(axis) for axis in axes] == [1, 0]:
            return matrix.args[0]
    return None


def _path(node: relay.Call, out: relay.Expr) -> list[relay.Expr]:
    """The values between a product and the operand that was found behind reshapes."""
    path, pending = [], parts(node)
    while pending:
        each = pending.pop()
        if not each.same_as(out) and is_call_of(each, "transpose", "reshape"):
            path.append(each)
            pending += parts(each)
        elif isinstance(each, relay.Tuple):
            path.append(each)
    return path


def _above(out: relay.Expr) -> list[relay.Expr]:
    """What a value is made of, not looking behind what dispatches."""
    nodes, pending, seen = [], [out], set()
    while pending:
        each = pending.pop()
        if each in seen:
            continue
        seen.add(each)
        nodes.append(each)
        if _dispatch_ends(each) is None:
            pending += parts(each)
    return nodes
