"""A loss computed by a Relay function -> the gradients of some of its inputs, in plain dataflow.

Reverse-mode differentiation: Griewank and Walther, "Evaluating Derivatives" (section 3.2). The
gradient of each op is that of TVM's registry, as for `relay.transform.gradient`. Unlike that pass
(`first_order_gradient.cc`):

- the calls of the forward pass stay as they are, and what they are the gradient of is named by
  spans (`step_spans.py`), which the pass drops;
- only what leads from the inputs asked for to the result is differentiated, so that masks,
  indices and shapes need no gradient;
- there are no `let`s and references to be removed, and `collapse_sum_like` and its kind, which
  keep a tensor alive for its shape, are replaced by ops with that shape written out
  (`simplify.py`).

Numbers are those of the pass. Linear in the number of calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import tvm
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.parts.parallel.training.gradients import register_gradients
from heteroplace.parts.parallel.training.step_spans import (
    gradient_name,
    name_new,
    new_nodes,
    span_name,
)
from heteroplace.relay.expressions import post_order, static_shape, tensor_types
from heteroplace.relay.tasks.fold import children

_ATTRIBUTE = "FPrimalGradient"


def differentiate(
    result: relay.Expr, seed: relay.Expr, inputs: Sequence[relay.Var]
) -> list[relay.Expr | None]:
    """Return for each of `inputs` the gradient of a scalar that depends on it through `result`.

    Parameters
    ----------
    result
        A tensor, its type inferred; plain dataflow, whose calls have names (`name_calls`).
    seed
        The gradient of the scalar with respect to `result`, of its shape and type.
    inputs
        Variables that `result` is computed from.

    Returns
    -------
    Untyped expressions of the shapes of `inputs`; None: the result does not depend on it, or
    only through values that are not differentiable (integers, comparisons).

    Raises
    ------
    UnsupportedRelayError
        An op on the way has no gradient, or one that is no plain dataflow. The message names it.
    """
    register_gradients()
    return _Backward(result, inputs).run(result, seed, inputs)


def is_floating(type_: tvm.ir.Type) -> bool:
    """Say whether the values of a type, a tensor or a tuple, can have a gradient."""
    return any(part.dtype.startswith(("float", "bfloat")) for part in tensor_types(type_))


class _Backward:
    """One walk over the forward pass, results first."""

    def __init__(self, result: relay.Expr, inputs: Sequence[relay.Var]) -> None:
        self._nodes = post_order(result)
        self._sums: dict[relay.Expr, list[list[relay.Expr]]] = {}
        """For each value, and of a tuple each field, the gradients that it got from its readers."""
        self._first_reader: dict[relay.Expr, str] = {}
        self._product_sums: dict[relay.Expr, bool] = {}
        """For each whole gradient whether it is made of products alone; see `_sum`."""
        self._known: dict[relay.Expr, relay.Expr] = {node: node for node in self._nodes}
        self._active = set(inputs)
        for node in self._nodes:
            parts = [child in self._active for child in children(node)]
            if any(parts) and is_floating(node.checked_type):
                self._active.add(node)

    def run(
        self, result: relay.Expr, seed: relay.Expr, inputs: Sequence[relay.Var]
    ) -> list[relay.Expr | None]:
        self._known.update((node, node) for node in new_nodes(seed, self._known))
        self._give(result, [seed], span_name(result))
        for node in reversed(self._nodes):
            if node in self._sums and not isinstance(node, relay.Var):
                self._visit(node)
        return [self._sum(var, 0) if var in self._sums else None for var in inputs]

    def _visit(self, node: relay.Expr) -> None:
        reader = self._first_reader[node]
        if isinstance(node, relay.Tuple):
            for field, gradient in zip(node.fields, self._sums[node], strict=True):
                self._give(field, gradient, reader)
        elif isinstance(node, relay.TupleGetItem):
            self._give(node.tuple_value, self._sums[node][0], reader, node.index)
        elif isinstance(node, relay.Call) and isinstance(node.op, tvm.ir.Op):
            self._call(node)
        else:
            raise UnsupportedRelayError(
                f"the module holds a {type(node).__name__} expression; only dataflow (calls of "
                f"operators, tuples, constants) can be differentiated: inline functions by "
                f"relay.transform.Inline(), and unroll loops"
            )

    def _give(
        self, value: relay.Expr, gradients: Sequence[relay.Expr], reader: str, index: int = 0
    ) -> None:
        """Note gradients of a value, or of a field of it, that one of its readers gave."""
        if value not in self._active or not gradients:
            return
        type_ = value.checked_type
        fields = type_.fields if isinstance(type_, relay.TupleType) else ()
        if any(isinstance(field, relay.TupleType) for field in fields):
            raise UnsupportedRelayError(
                f"{reader!r} reads a tuple of tuples, {type_}, which has no gradient here: read "
                f"its fields one by one"
            )
        if value not in self._sums:
            self._sums[value] = [[] for _ in tensor_types(type_)]
        self._sums[value][index].extend(gradients)
        self._first_reader[value] = reader  # of several the last to give, the first to run

    def _call(self, call: relay.Call) -> None:
        name = span_name(call)
        gradient = call.op.get_attr(_ATTRIBUTE)
        if gradient is None:
            raise UnsupportedRelayError(
                f"{call.op.name} of {name!r} has no gradient: give it one by "
                f"tvm.relay.op.register_gradient({call.op.name!r}, ...), or write it in ops that "
                f"have one (relay.transform.SimplifyInference() does so for many norms)"
            )
        parts = [self._sum(call, index) for index in range(len(self._sums[call]))]
        is_tuple = isinstance(call.checked_type, relay.TupleType)
        gradients = gradient(call, relay.Tuple(parts) if is_tuple else parts[0])
        if len(gradients) != len(call.args):
            raise UnsupportedRelayError(
                f"the gradient of {call.op.name} gives {len(gradients)} gradients for its "
                f"{len(call.args)} operands"
            )
        for operand, of_operand in zip(call.args, gradients, strict=True):
            if operand not in self._active:
                continue
            expr = self._named(of_operand, name, call)
            if not isinstance(operand.checked_type, relay.TupleType):
                self._give(operand, [expr], name)
                continue
            for index in range(len(operand.checked_type.fields)):
                self._give(operand, [_field(expr, index)], name, index)

    def _sum(self, value: relay.Expr, index: int) -> relay.Expr:
        """The whole gradient of a value, summed in the order in which its readers gave it.

        But what products give comes first: of a product whose weight is cut each shard has a part
        of the sum, and these parts are then added up between the shards once, not each.
        """
        gradient = self._sums[value][index]
        products = [expr for expr in gradient if self._is_product(expr)]
        others = [expr for expr in gradient if expr not in products]
        if gradient:
            expr = reduce(relay.add, [*products, *others])
        else:
            type_ = tensor_types(value.checked_type)[index]
            expr = relay.zeros(static_shape(type_), type_.dtype)
        named = self._named(expr, span_name(value) or self._first_reader[value], value)
        self._product_sums[named] = bool(products) and not others
        return named

    def _is_product(self, gradient: relay.Expr) -> bool:
        """Say whether a gradient is nothing but products, summed and in other shapes."""
        stack = [gradient]
        while stack:
            node = stack.pop()
            if node in self._product_sums:
                if not self._product_sums[node]:
                    return False
            elif not isinstance(node, relay.Call):
                return False
            elif linear_operands := traits_of(node.op.name).linear_operands:
                stack.extend(node.args[:linear_operands])
            elif traits_of(node.op.name).kind != "product":
                return False
        return True

    def _named(self, expr: relay.Expr, forward: str, source: relay.Expr) -> relay.Expr:
        """A copy of what is new in `expr` that says of which call it is the gradient."""
        for node in new_nodes(expr, self._known):
            if isinstance(node, relay.Call) and not isinstance(node.op, tvm.ir.Op):
                raise UnsupportedRelayError(
                    f"the gradient that is registered for {source.op.name} of {forward!r} calls "
                    f"functions (a loop); only one of plain ops can be compiled ahead of time"
                )
        return name_new(expr, self._known, gradient_name(forward))


def _field(value: relay.Expr, index: int) -> relay.Expr:
    if isinstance(value, relay.Tuple):
        return value.fields[index]
    return relay.TupleGetItem(value, index, value.span)
