"""Reshapes between a product and what follows it -> the same reshapes behind what is fused with it.

Transformers multiply matrices, and add what they make in three dimensions. FuseOps does not fuse
an op with a product through a reshape, so each such op is a pass over memory.

    add(reshape(%a), %b)     ==>  reshape(add(%a, reshape(%b)))
    tanh(reshape(%a))        ==>  reshape(tanh(%a))
    reshape(reshape(%a))     ==>  reshape(%a), or %a

Here %a is a product, or what is fused with one. A reshape joins or splits leading axes, and the
last axis stays. Nothing moves that FuseOps would not fuse: an op moves if all that reads the
product goes through it.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import ops_where
from heteroplace.relay.expr_map import ExprMap
from heteroplace.relay.expressions import (
    function_pass,
    is_dataflow,
    known_shape,
    op_name,
    post_order,
    rebuilt,
    spanned,
    static_shape,
)
from heteroplace.relay.tasks.fold import children

Shape = tuple[int, ...]

_PRODUCTS = frozenset({"nn.dense", "nn.matmul"})
_VIEWS = ops_where(lambda op: op.kind == "view")
_KINDS = frozenset({"unary", "leaky", "arithmetic", "division", "power", "rounding"})
_ELEMENTWISE = ops_where(lambda op: op.kind in _KINDS) | {
    *("cast", "sqrt", "rsqrt", "log", "sign", "fast_erf", "fast_exp", "fast_tanh"),
    *("equal", "greater", "greater_equal", "less", "less_equal", "not_equal", "where"),
}
"""Ops without an attribute that names an axis, or a shape."""
_BIAS_ADD = "nn.bias_add"
_MAX_FUSED = 256
"""FuseOps fuses no more ops than these."""


def ReshapesBehind() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass, which goes before FuseOps."""

    def run(function: relay.Function) -> relay.Function:
        if not is_dataflow(function):
            return function
        moved = _Flow(function).moved()
        return rebuilt(function, _Rewriter(moved).rewritten) if moved else function

    return function_pass("ReshapesBehind", run, ops=tuple(_PRODUCTS))


def _shape(expr: relay.Expr) -> Shape | None:
    type_ = expr.checked_type
    return known_shape(type_) if isinstance(type_, relay.TensorType) else None


class _Flow:
    """Which ops follow products, in the order of a walk over a function.

    Parameters
    ----------
    function
        Plain dataflow, typed.
    """

    def __init__(self, function: relay.Function) -> None:
        self._nodes = [n for n in post_order(function.body) if not isinstance(n, tvm.ir.Op)]
        self._at: ExprMap[int] = ExprMap()
        self._readers: list[list[int]] = [[] for _ in self._nodes]
        self._flat: list[Shape | None] = [None] * len(self._nodes)
        """The shape of the product that each follows, elementwise or by views."""
        self._parameters: list[int] = [0] * len(self._nodes)
        """A bit for each variable that a value depends on."""
        num_parameters = 0
        for at, node in enumerate(self._nodes):
            self._at[node] = at
            operands = [each for each in children(node) if each in self._at]
            if isinstance(node, relay.Var):
                self._parameters[at] = 1 << num_parameters
                num_parameters += 1
            for operand in operands:
                self._readers[self._at[operand]].append(at)
                self._parameters[at] |= self._parameters[self._at[operand]]
            self._flat[at] = self._flat_of(node)

    def _flat_of(self, node: relay.Expr) -> Shape | None:
        name = op_name(node)
        shape = None if name is None else _shape(node)
        if name is None or shape is None:
            return None
        if name in _PRODUCTS:
            return shape
        if name in _VIEWS:
            flat = self._flat[self._at[node.args[0]]]
            return flat if flat and shape[-1:] == flat[-1:] else None
        if name not in _ELEMENTWISE and not _is_bias(node):
            return None
        followed = [each for each in node.args if self._follows(each, shape)]
        if not followed or not all(self._fits(each, shape, followed[0]) for each in node.args):
            return None
        return self._flat[self._at[followed[0]]]

    def _follows(self, operand: relay.Expr, shape: Shape) -> bool:
        return self._flat[self._at[operand]] is not None and _shape(operand) == shape

    def _fits(self, operand: relay.Expr, shape: Shape, followed: relay.Expr) -> bool:
        """Whether an operand can be read in the shape of the product; so that the network can
        still be made for several items, each is along the same axis as before."""
        own, at = _shape(operand), self._at[operand]
        if own is None:
            return False
        if len(own) < 2:
            return own in ((), (1,), shape[-1:])
        is_shared = bool(self._parameters[at] & self._parameters[self._at[followed]])
        if own == shape and is_shared:
            return True
        return not is_shared and _is_vector(own, shape)

    def moved(self) -> ExprMap[Shape]:
        """Return the ops that products are fused with, and did not reach before, by the shape of
        the product, and those between; none: {}."""
        moved: ExprMap[Shape] = ExprMap()
        for at, (node, flat) in enumerate(zip(self._nodes, self._flat, strict=True)):
            if op_name(node) in _PRODUCTS and flat is not None:
                for op in self._fused_with(at):
                    moved[self._nodes[op]] = flat
        return moved

    def _fused_with(self, product: int) -> list[int]:
        """The ops and views behind a product up to the last through which all goes; none if no
        view is between."""
        fused: list[int] = []
        passed: list[int] = []
        is_behind_view = gains = False
        open_ = [product]
        while len(passed) < _MAX_FUSED:
            at = heapq.heappop(open_)
            node = self._nodes[at]
            is_view = op_name(node) in _VIEWS
            if at != product:
                passed.append(at)
                is_behind_view |= is_view and _shape(node) != _shape(node.args[0])
            if not open_ and not is_view and at != product:
                fused += passed
                passed = []
                gains |= is_behind_view
            readers = self._readers[at]
            flat = self._flat[product]
            if not readers or any(self._flat[each] != flat for each in readers):
                break
            if any(op_name(self._nodes[each]) in _PRODUCTS for each in readers):
                break
            for each in readers:
                if each not in open_:
                    heapq.heappush(open_, each)
        return fused if gains else []


def _is_bias(node: relay.Call) -> bool:
    if op_name(node) != _BIAS_ADD:
        return False
    return int(node.attrs.axis) in (-1, len(node.checked_type.shape) - 1)


def _is_vector(own: Shape, shape: Shape) -> bool:
    """Whether an operand has one number, or one along each place of the last axis."""
    return all(extent == 1 for extent in own[:-1]) and own[-1] in (1, shape[-1])


class _Flattened(NamedTuple):
    """What has the elements of an old expression, in the shape of the product that it follows."""

    expr: relay.Expr
    shape: Shape


class _Rewriter:
    """Sees the calls of a function in order.

    Parameters
    ----------
    moved
        Of `_Flow.moved`.
    """

    def __init__(self, moved: ExprMap[Shape]) -> None:
        self._moved = moved
        self._flattened: ExprMap[_Flattened] = ExprMap()
        self._reshaped: dict[tuple[relay.Expr, Shape], relay.Expr] = {}
        """Each value is reshaped once: two equal reshapes would keep what makes it from being fused
        with either."""

    def rewritten(self, old: relay.Expr, new: relay.Expr) -> relay.Expr:
        """Return what stands for an expression whose operands are new ones."""
        if old in self._moved and op_name(old) not in _VIEWS:
            return self._behind(old, new, self._moved[old])
        if op_name(old) in _VIEWS:
            return self._view(old, new)
        return new

    def _behind(self, old: relay.Call, new: relay.Call, flat: Shape) -> relay.Expr:
        shape = static_shape(old.checked_type)
        operands = []
        for before, after in zip(old.args, new.args, strict=True):
            if _shape(before) == shape and not (
                isinstance(before, relay.Constant) and _is_vector(shape, shape)
            ):
                operands.append(self._flat(before, after, flat, old.span))
            else:
                operands.append(_vector(before, after, len(flat), old.span))
        if op_name(old) == _BIAS_ADD:
            call = spanned(relay.nn.bias_add(*operands, axis=len(flat) - 1), old.span)
        else:
            call = relay.Call(new.op, operands, new.attrs, None, old.span)
        self._flattened[old] = _Flattened(call, flat)
        return self._as(call, flat, shape, old.span)

    def _view(self, old: relay.Call, new: relay.Call) -> relay.Expr:
        source, shape = old.args[0], static_shape(old.checked_type)
        if source in self._flattened:
            self._flattened[old] = self._flattened[source]
            return self._as(*self._flattened[source], shape, old.span)
        if old in self._moved:
            self._flattened[old] = _Flattened(new.args[0], self._moved[old])
        return self._reshaped.setdefault((new.args[0], shape), new)

    def _flat(
        self, old: relay.Expr, new: relay.Expr, flat: Shape, span: relay.Span | None
    ) -> relay.Expr:
        """An operand that has as many elements as the product."""
        if old in self._flattened:
            return self._as(*self._flattened[old], flat, span)
        return self._as(new, static_shape(old.checked_type), flat, span)

    def _as(
        self, value: relay.Expr, shape: Shape, new_shape: Shape, span: relay.Span | None
    ) -> relay.Expr:
        if shape == new_shape:
            return value
        if (value, new_shape) not in self._reshaped:
            self._reshaped[value, new_shape] = spanned(relay.reshape(value, new_shape), span)
        return self._reshaped[value, new_shape]


def _vector(old: relay.Expr, new: relay.Expr, max_rank: int, span: relay.Span | None) -> relay.Expr:
    """A scalar, or a vector along the last axis, of no more axes than the product."""
    shape = static_shape(old.checked_type)
    if len(shape) <= max_rank:
        return new
    if isinstance(new, relay.Constant):
        return relay.const(new.data.numpy().reshape(shape[-1:]), old.checked_type.dtype)
    return spanned(relay.reshape(new, shape[-1:]), span)
