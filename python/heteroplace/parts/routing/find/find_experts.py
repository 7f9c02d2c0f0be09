"""What is done with the tokens of all experts at once -> the same as a function of one expert.

batch_matmul(v[E, cap, d], w[E, f, d])  ==>  dense(rows[rows, d], w[e])
"""

from __future__ import annotations

import numpy as np
from tvm import relay

from heteroplace.parts.routing.find.find_candidates import Unproven
from heteroplace.parts.routing.find.find_graph import is_call, is_call_of, parts, shown
from heteroplace.relay.axes.rules import is_broadcast
from heteroplace.relay.expressions import static_shape

_RANK = 3


def letters_of(call: relay.Expr) -> tuple[str, str, str] | None:
    """The letters of an einsum of two operands."""
    if not is_call_of(call, "einsum"):
        return None
    equation = str(call.attrs.equation).replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != 2 or "." in equation:
        return None
    return terms[0], terms[1], result


class Experts:
    """What is done with [experts, seats, d], as a function of the rows of one expert."""

    def __init__(self, begin: relay.Expr, out: relay.Expr) -> None:
        self._begin, self._out = begin, out
        self._dependent = self._depends()

    def nodes(self) -> list[relay.Expr]:
        """Return what is computed of the tokens of experts."""
        return list(self._dependent)

    def _depends(self) -> dict[relay.Expr, None]:
        """The values that are made of what is dispatched, operands first."""
        order: list[relay.Expr] = []
        pending, seen = [(self._out, False)], set()
        while pending:
            each, is_ready = pending.pop()
            if is_ready:
                order.append(each)
            elif each not in seen:
                seen.add(each)
                pending.append((each, True))
                if not each.same_as(self._begin):
                    pending += [(part, False) for part in reversed(parts(each))]
        nodes: dict[relay.Expr, None] = {self._begin: None}
        for each in order:
            if any(part in nodes for part in parts(each)) and each not in nodes:
                nodes[each] = None
        for each in nodes:
            if not each.same_as(self._begin):
                self._check(each, nodes)
        return nodes

    def _check(self, node: relay.Expr, nodes: dict[relay.Expr, None]) -> None:
        """Raise Unproven unless an op works on each expert's matrix alone, row by row."""
        if isinstance(node, relay.Tuple):
            return
        first, others = self._operands(node)
        is_row = [each in nodes for each in (first, *others)]
        is_product = is_call_of(node, "nn.batch_matmul") and not bool(node.attrs.transpose_a)
        letters = letters_of(node)
        if letters is not None:
            one, two, result = letters
            is_product = len(one) == _RANK and one[0] == two[0] == result[0] and (
                two[1:] == one[2] + result[2] and result[1] == one[1]
            )  # fmt: skip
        if is_product and is_row == [True, False]:
            return
        if is_call(node) and is_broadcast(node) and self._is_rowwise(node, nodes):
            return
        raise Unproven(f"{shown(node)} is not known to work on each seat of each expert alone")

    def _is_rowwise(self, node: relay.Call, nodes: dict[relay.Expr, None]) -> bool:
        """Operands that are no tokens are the same for all seats."""
        shape = static_shape(node.checked_type)
        for each in node.args:
            sizes = static_shape(each.checked_type)
            is_fit = len(sizes) == len(shape) if each in nodes else len(sizes) < 2 or sizes[-2] == 1
            if not is_fit or (each in nodes and sizes[:2] != shape[:2]):
                return False
        return len(shape) == _RANK

    def _operands(self, node: relay.Call) -> tuple[relay.Expr, list[relay.Expr]]:
        operands = [
            leaf
            for argument in node.args
            for leaf in (argument.fields if isinstance(argument, relay.Tuple) else [argument])
        ]
        return operands[0], operands[1:]

    def of(self, index: int, rows: relay.Expr) -> relay.Expr:
        """Return what an expert makes of rows [rows, d]."""
        values: dict[relay.Expr, relay.Expr] = {self._begin: rows}
        for node in self._dependent:
            if node in values or isinstance(node, relay.Tuple):
                continue
            first, others = self._operands(node)
            if is_call_of(node, "nn.batch_matmul", "einsum"):
                weight = self._part(others[0], index, 2)
                is_turned = is_call_of(node, "einsum") or not bool(node.attrs.transpose_b)
                weight = relay.transpose(weight) if is_turned else weight
                values[node] = relay.nn.dense(values[first], weight)
                continue
            arguments = [
                values[each] if each in values else self._part(each, index, 2) for each in node.args
            ]
            values[node] = relay.Call(node.op, arguments, node.attrs, None, node.span)
        return values[self._out]

    def _part(self, value: relay.Expr, index: int, rank: int) -> relay.Expr:
        """An expert's part of weights that may be stacked along axis 0."""
        shape = static_shape(value.checked_type)
        if len(shape) <= rank:
            return value
        if isinstance(value, relay.Constant):
            array = value.data.numpy()[index if shape[0] > 1 else 0]
            return relay.const(np.ascontiguousarray(array), value.checked_type.dtype)
        at = relay.const(index if shape[0] > 1 else 0, "int32")
        return relay.take(value, at, axis=0)
