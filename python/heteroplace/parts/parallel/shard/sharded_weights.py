"""Expressions of weights alone -> what each shard has of them.

A weight has no state of its own: it is cut as its first reader needs it. A constant is cut at once,
a parameter becomes one parameter for each shard, and an op between a weight and its reader (a
transpose, a cast) is done by each shard on its part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.parts.parallel.shard.carry import CannotCarry, Carrier, States
from heteroplace.parts.parallel.shard.cuts import Cut, Kept, State, part_shape, without_divisor
from heteroplace.parts.parallel.shard.sharded_network import Node
from heteroplace.relay.axes.shapes import places_after_reshape
from heteroplace.relay.expressions import static_shape


class ShardedWeight(NamedTuple):
    """A parameter that holds a weight, and the parameters of the shards that stand for it."""

    name: str
    parts: tuple[str, ...]
    """Names of the parameters, one for each shard; or the only one, which all of them read."""
    axis: int | None
    """The axis that is cut; None: each has all of it."""
    extents: tuple[int, ...]
    """Of each shard's part along the axis."""
    blocks: int = 1
    """The axis is so many ranges of one size, and each is cut."""

    def part(self, value: np.ndarray, shard: int) -> np.ndarray:
        """Return what a shard has of a value of the weight."""
        if self.axis is None:
            return value
        cut = Cut(self.axis, without_divisor(self.extents), self.blocks)
        return cut_array(value, cut, shard)

    def joined(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return the weight of which the shards have these parts."""
        if self.axis is None:
            return parts[0]
        ranges = [np.split(part, self.blocks, self.axis) for part in parts]
        blocks = [np.concatenate(mine, self.axis) for mine in zip(*ranges, strict=True)]
        return np.concatenate(blocks, self.axis)


def cut_array(array: np.ndarray, cut: Cut, shard: int) -> np.ndarray:
    """Return a copy of the part of an array that a shard has."""
    whole = array.shape[cut.axis]
    ranges = [
        np.take(array, np.arange(begin, end), cut.axis) for begin, end in cut.ranges(whole, shard)
    ]
    return np.concatenate(ranges, cut.axis)


def cut_constant(constant: relay.Constant, cut: Cut, shard: int) -> relay.Constant:
    """Return what a shard has of a constant."""
    part = np.ascontiguousarray(cut_array(constant.data.numpy(), cut, shard))
    dtype = str(constant.data.dtype)
    array = tvm.nd.empty(part.shape, dtype)
    array.copyfrom(part)
    return relay.Constant(array, constant.span)


def cut_parameter(
    parameter: relay.Var, state: State, num_shards: int
) -> tuple[ShardedWeight, list[relay.Var]]:
    """Return the parameters of the shards that stand for one, and what says so."""
    name, type_ = parameter.name_hint, parameter.checked_type
    shape = static_shape(type_)
    variables = [
        relay.Var(
            f"{name}.shard{shard}",
            relay.TensorType(part_shape(shape, state, shard), type_.dtype),
            parameter.span,
        )
        for shard in range(num_shards)
    ]
    names = tuple(variable.name_hint for variable in variables)
    if isinstance(state, Kept):
        return ShardedWeight(name, names, None, ()), variables
    extents = tuple(state.extent(shape[state.axis], shard) for shard in range(num_shards))
    return ShardedWeight(name, names, state.axis, extents, state.blocks), variables


def depending_on(nodes: Sequence[Node], names: Collection[str]) -> set[Node]:
    """Return the expressions that depend on parameters of these names; `nodes` operands first."""
    dependents = set()
    for node in nodes:
        is_one = isinstance(node.expr, relay.Var) and node.expr.name_hint in names
        if is_one or any(child in dependents for child in node.children):
            dependents.add(node)
    return dependents


def needs_before(carrier: Carrier, call: Node, state: Cut) -> States | None:
    """Return how the operands of a call of weights must be cut for its result to be cut so.

    None: there is no way; each shard then computes all of it, and takes its part.
    """
    if not call.is_tensor:
        return None
    for leader, cut in _cuts_before(call, state):
        try:
            needs = carrier.companions(call, leader, cut)
            if carrier.carry(call, needs) == (state,):
                return needs
        except CannotCarry:
            continue
    return None


def _cuts_before(call: Node, state: Cut) -> Iterator[tuple[int, Cut]]:
    """Cuts of operands that might lead to a cut of the result."""
    shapes = call.operand_shapes
    if traits_of(call.op).cut == "reshape":
        (shape,) = call.shapes
        before = prod(shape[: state.axis])
        for axis, blocks in places_after_reshape(before, state.blocks, shapes[0]):
            if state.along(axis, blocks).fits(shapes[0][axis]):
                yield 0, state.along(axis, blocks)
        return
    for leader, shape in enumerate(shapes):
        for axis, extent in enumerate(shape):
            for blocks in sorted({state.blocks, max(1, state.blocks // len(shapes))}):
                if state.along(axis, blocks).fits(extent):
                    yield leader, state.along(axis, blocks)
