"""A typed Relay function -> its expressions as Python values, operands first.

Every question to an expression of TVM is a call of C++ that takes a microsecond or more, and what
follows an axis asks many of each: here each is asked once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.model.graph import tensor_bytes
from heteroplace.relay.expressions import post_order, static_shape, tensor_types
from heteroplace.relay.shard_spans import span_name


@dataclass(eq=False)
class Node:
    """An expression; equal only to itself."""

    expr: relay.Expr
    children: tuple[Node, ...]
    """Operands of a call, fields of a tuple, or the tuple that it is a field of."""
    shapes: tuple[tuple[int, ...], ...]
    """Of the tensors that it is, tuples flattened."""
    dtypes: tuple[str, ...]
    op: str
    """Name of the operator that it calls; "" if it is no call."""
    name: str
    """In its span, as the model had it; "" if there is none."""

    @cached_property
    def is_tensor(self) -> bool:
        """Whether it is no tuple."""
        return isinstance(self.expr.checked_type, relay.TensorType)

    @cached_property
    def operand_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the tensors that it reads, tuples flattened."""
        return tuple(shape for child in self.children for shape in child.shapes)

    @cached_property
    def operand_bytes(self) -> tuple[int, ...]:
        """Sizes of the tensors that it reads."""
        return tuple(size for child in self.children for size in child.bytes)

    @cached_property
    def bytes(self) -> tuple[int, ...]:
        """Sizes of the tensors that it is."""
        pairs = zip(self.shapes, self.dtypes, strict=True)
        return tuple(tensor_bytes(shape, dtype) for shape, dtype in pairs)

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """What calls have in common that compute the same of operands of the same types."""
        attrs = self.expr.attrs
        types = tuple((child.shapes, child.dtypes, child.is_tensor) for child in self.children)
        return self.op, 0 if attrs is None else int(tvm.ir.structural_hash(attrs)), types

    def field_of(self, values: Sequence[Any]) -> list[Any]:
        """Return what a field of a tuple has of one value for each tensor of the tuple."""
        types = self.children[0].expr.checked_type.fields
        counts = [len(tensor_types(type_)) for type_ in types]
        first = sum(counts[: self.expr.index])
        return list(values[first : first + len(self.shapes)])


def read_network(main: relay.Function) -> list[Node]:
    """Return the expressions of a typed function; the last one is its body.

    Raises
    ------
    UnsupportedRelayError
        It is no plain dataflow, or has dynamic shapes.
    """
    node_of: dict[relay.Expr, Node] = {}
    for expr in post_order(main.body):
        if not isinstance(expr, tvm.ir.Op):
            node_of[expr] = _node(expr, node_of)
    return list(node_of.values())


def _node(expr: relay.Expr, node_of: dict[relay.Expr, Node]) -> Node:
    op = ""
    if isinstance(expr, relay.Call) and isinstance(expr.op, tvm.ir.Op):
        op, read = str(expr.op.name), list(expr.args)
    elif isinstance(expr, relay.Tuple):
        read = list(expr.fields)
    elif isinstance(expr, relay.TupleGetItem):
        read = [expr.tuple_value]
    elif isinstance(expr, (relay.Var, relay.Constant)):
        read = []
    else:
        raise UnsupportedRelayError(
            f"the module holds a {type(expr).__name__} expression; only dataflow (calls of "
            f"operators, tuples, constants) can be shared by shards: inline functions and unroll "
            f"loops first"
        )
    types = tensor_types(expr.checked_type)
    return Node(
        expr,
        tuple(node_of[each] for each in read),
        tuple(static_shape(type_) for type_ in types),
        tuple(str(type_.dtype) for type_ in types),
        op,
        span_name(expr),
    )
