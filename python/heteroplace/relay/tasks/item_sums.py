"""What adds up over the rows of one item -> the same over the rows of several items together.

A gradient of a weight is a sum over rows. That of several microbatches is the sum of theirs, or one
sum over all of their rows, which reads and writes the gradient once (the weight gradients of Qi et
al., "Zero Bubble Pipeline Parallelism", 2024, which wait until the end). That both are equal is
proven op by op: what comes before the sum keeps items apart, and what comes after it only gives it
another shape.

before ==> after, for 8 items of 16 rows

    nn.matmul(%x: [16, 4], %dy: [16, 3], transpose_a=True): [4, 3], eight times, added up
    ==>  nn.matmul(%x: [128, 4], %dy: [128, 3], transpose_a=True): [4, 3]
"""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction

import tvm
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.relay.axes.rules import Axes
from heteroplace.relay.expressions import leaves, static_shape, tensor_types
from heteroplace.relay.local_types import write_types
from heteroplace.relay.tasks.rebatch import Growth, Rebatched, Rebatcher

_SHAPES = frozenset({"reshape", "squeeze", "expand_dims", "transpose"})
"""Ops that compute nothing."""


def sums_of_items(mod: tvm.IRModule, num_items: int, inputs: Collection[str]) -> tvm.IRModule:
    """Return what adds up several items at once, typed.

    Parameters
    ----------
    mod
        Module of one function of plain dataflow; each of its results adds up over what its inputs
        hold of one item.
    num_items
        >= 1.
    inputs
        Names of the parameters that hold items, along their leading dimension; of several items
        each has its rows behind those of the item before. The others are the same for all items.

    Raises
    ------
    UnsupportedRelayError
        A result is not proven to be a sum over items; the message names the op.
    """
    main = relay.transform.InferType()(mod)["main"]
    for parameter in main.params:
        name = parameter.name_hint
        if name in inputs and not static_shape(parameter.checked_type):
            raise UnsupportedRelayError(f"input {name!r} is a scalar; it has no rows")
    growths = dict.fromkeys(inputs, Growth(Fraction(num_items)))
    return _ItemSums(growths, f"sums over {num_items} items at once").run(main)


class _ItemSums(Rebatcher):
    """One walk, operands first, that knows which values are sums over items."""

    def run(self, main: relay.Function) -> tvm.IRModule:
        self._sums: set[relay.Expr] = set()
        body = self._rebatched(main)
        for number, result in enumerate(leaves(main.body)):
            if result not in self._sums:
                raise UnsupportedRelayError(f"result {number} is no sum over items")
        return self._module(main, body)

    def _call(self, call: relay.Call) -> Rebatched:
        if self._sums.isdisjoint(call.args):
            axes = tuple(axis for each in call.args for axis in self._done[each].axes)
            if not _adds_up(call, axes):
                return super()._call(call)
        elif call.op.name not in _SHAPES:
            raise self._fault(call, "it computes with a sum over them")
        arguments = [self._done[argument].expr for argument in call.args]
        new = relay.Call(call.op, arguments, call.attrs, None, call.span)
        write_types(new)
        if tensor_types(new.checked_type) != tensor_types(call.checked_type):
            raise self._fault(call, "its result grows with their number")
        self._sums.add(call)
        return Rebatched(new, (None,))


def _adds_up(call: relay.Call, axes: Axes) -> bool:
    """Whether a call adds up over the axis that holds the items, and is linear in them."""
    if call.op.name == "sum" and axes[0] is not None:
        rank = len(static_shape(call.args[0].checked_type))
        given = call.attrs.axis
        summed = {int(axis) % rank for axis in given} if given is not None else set(range(rank))
        return (axes[0] in summed) != bool(call.attrs.exclude)
    if call.op.name == "nn.matmul":
        left = 0 if call.attrs.transpose_a else 1
        right = 1 if call.attrs.transpose_b else 0
        return axes == (left, right)
    return False
