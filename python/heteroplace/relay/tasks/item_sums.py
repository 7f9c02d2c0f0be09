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

from collections.abc import Collection, Mapping
from fractions import Fraction

import tvm
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.relay.axes.rules import Axes
from heteroplace.relay.expressions import leaves, static_shape, tensor_types
from heteroplace.relay.local_types import write_types
from heteroplace.relay.tasks.rebatch import Growth, Rebatched, Rebatcher


def sums_of_items(
    mod: tvm.IRModule, num_items: int, inputs: Mapping[str, int], zeros: Collection[str] = ()
) -> tvm.IRModule:
    """Return what adds up several items at once, typed.

    Parameters
    ----------
    mod
        Module of one function of plain dataflow; each of its results adds up over what its inputs
        hold of one item.
    num_items
        >= 1.
    inputs
        For each parameter that holds items, by name, along which axis; of several items each has
        its rows behind those of the item before. The other parameters are the same for all items.
    zeros
        Names of those that are 0 everywhere: rows may be added to them.

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
    return _ItemSums(num_items, inputs, zeros).run(main)


class _ItemSums(Rebatcher):
    """One walk, operands first, that knows which values are sums over items."""

    def __init__(self, num_items: int, inputs: Mapping[str, int], zeros: Collection[str]) -> None:
        growths = dict.fromkeys(inputs, Growth(Fraction(num_items)))
        super().__init__(growths, f"sums over {num_items} items at once")
        self._inputs = inputs
        self._zeros = frozenset(zeros)
        self._sums: set[relay.Expr] = set()

    def run(self, main: relay.Function) -> tvm.IRModule:
        body = self._rebatched(main)
        for number, result in enumerate(leaves(main.body)):
            if result not in self._sums:
                raise UnsupportedRelayError(f"result {number} is no sum over items")
        return self._module(main, body)

    def _axis_of(self, parameter: relay.Var) -> int:
        return self._inputs[parameter.name_hint]

    def _call(self, call: relay.Call) -> Rebatched:
        if self._sums.isdisjoint(call.args):
            axes = tuple(axis for each in call.args for axis in self._done[each].axes)
            if not self._adds_up(call, axes):
                return super()._call(call)
        elif traits_of(call.op.name).kind not in ("view", "permute"):
            raise self._fault(call, "it computes with a sum over them")
        arguments = [self._done[argument].expr for argument in call.args]
        new = relay.Call(call.op, arguments, call.attrs, None, call.span)
        write_types(new)
        if tensor_types(new.checked_type) != tensor_types(call.checked_type):
            raise self._fault(call, "its result grows with their number")
        self._sums.add(call)
        return Rebatched(new, (None,))

    def _adds_up(self, call: relay.Call, axes: Axes) -> bool:
        """Whether a call adds up over the axis that holds the items, and is linear in them."""
        if call.op.name == "scatter_nd" and call.attrs.mode == "add":
            data, _, rows = call.args
            is_zero = isinstance(data, relay.Var) and data.name_hint in self._zeros
            # Behind the axis of indices that tells coordinates apart are those of the rows.
            depth = static_shape(call.args[1].checked_type)[0]
            is_along_rows = axes[1:] == (1, 0) and len(static_shape(rows.checked_type)) >= depth
            return is_zero and axes[0] is None and is_along_rows
        return _reduces(call, axes)


def _reduces(call: relay.Call, axes: Axes) -> bool:
    """Whether a sum, or the inner axis of a product, is along the axis that holds the items."""
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
