"""What the shards have of each tensor, as expressions, and how one form of it becomes another.

A tensor that is whole is sliced by each shard; one that is cut is gathered; summands are added up,
and where only parts of the sum are needed, scattered as well. Each is done once for all readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tvm
from tvm import relay

from heteroplace.parts.parallel.shard.cuts import Cut, Kept, State, part_shape
from heteroplace.parts.parallel.shard.sharded_network import Node
from heteroplace.relay.collective_ops import all_gather, all_reduce, reduce_scatter
from heteroplace.relay.shard_spans import Tag

Exprs = tuple[relay.Expr, ...]
"""One for each shard."""


@dataclass(eq=False)
class Leaf:
    """A tensor of the unsharded network."""

    source: Node
    """The expression that it is, or that is a tuple of it and others."""
    shape: tuple[int, ...]
    tag: Tag
    """Where its exchanges belong."""
    state: State | None = None
    """What the shards have of it; None: a weight that is not cut yet."""
    forms: dict[State, Exprs] = field(default_factory=dict)
    """What they have of it in each state that was asked for."""


def converted(leaf: Leaf, need: State, num_shards: int) -> Exprs:
    """Return a tensor, whose state is known, in another state; remembered in its `forms`."""
    assert leaf.state is not None  # else nobody has it
    if need not in leaf.forms:
        leaf.forms[need] = tuple(_converted(leaf, need, num_shards))
    return leaf.forms[need]


def _converted(leaf: Leaf, need: State, num_shards: int) -> Sequence[relay.Expr]:
    state = leaf.state
    assert state is not None
    own = leaf.forms[state]
    if state is Kept.SUM and isinstance(need, Cut) and need.blocks == 1:
        extents = [part_shape(leaf.shape, need, shard)[need.axis] for shard in range(num_shards)]
        scattered = _tagged(reduce_scatter(own, need.axis, extents), leaf.tag, None)
        return [relay.TupleGetItem(scattered, shard) for shard in range(num_shards)]
    if isinstance(need, Cut):
        whole = converted(leaf, Kept.WHOLE, num_shards)
        return [_sliced(leaf, whole[shard], need, shard) for shard in range(num_shards)]
    assert need is Kept.WHOLE  # nobody asks for summands
    if state is Kept.SUM:
        return (_tagged(all_reduce(own), leaf.tag, None),) * num_shards
    assert isinstance(state, Cut)
    if state.blocks == 1:
        return (_tagged(all_gather(own, state.axis), leaf.tag, None),) * num_shards
    opened = [
        _reshaped(leaf, expr, _opened(part_shape(leaf.shape, state, shard), state), shard)
        for shard, expr in enumerate(own)
    ]
    gathered = _tagged(all_gather(opened, state.axis + 1), leaf.tag, None)
    return [_reshaped(leaf, gathered, leaf.shape, shard) for shard in range(num_shards)]


def _sliced(leaf: Leaf, whole: relay.Expr, cut: Cut, shard: int) -> relay.Expr:
    """The part of a shard: in blocks, the same range of each."""
    shape = leaf.shape
    if cut.blocks == 1:
        ((begin, end),) = cut.ranges(shape[cut.axis], shard)
        return _range(leaf, whole, shape, cut.axis, (begin, end), shard)
    opened = _opened(shape, cut)
    value = _reshaped(leaf, whole, opened, shard)
    (first, *_) = cut.ranges(shape[cut.axis], shard)
    value = _range(leaf, value, opened, cut.axis + 1, first, shard)
    return _reshaped(leaf, value, part_shape(shape, cut, shard), shard)


def _opened(shape: Sequence[int], cut: Cut) -> tuple[int, ...]:
    """The shape with the blocks of the cut axis as an axis of their own."""
    block = shape[cut.axis] // cut.blocks
    return (*shape[: cut.axis], cut.blocks, block, *shape[cut.axis + 1 :])


def _range(
    leaf: Leaf,
    value: relay.Expr,
    shape: Sequence[int],
    axis: int,
    bounds: tuple[int, int],
    shard: int,
) -> relay.Expr:
    begin, end = [0] * len(shape), list(shape)
    begin[axis], end[axis] = bounds
    return _tagged(relay.strided_slice(value, begin, end), leaf.tag, shard)


def _reshaped(leaf: Leaf, value: relay.Expr, shape: Sequence[int], shard: int) -> relay.Expr:
    return _tagged(relay.reshape(value, shape), leaf.tag, shard)


def _tagged(call: relay.Call, tag: Tag, shard: int | None) -> relay.Call:
    return with_span(call, tag.span(shard))


def with_span(call: relay.Call, span: relay.Span) -> relay.Call:
    """Return the call with a span of ours."""
    return relay.Call(call.op, call.args, call.attrs, call.type_args, span)


def rebuilt(type_: tvm.ir.Type, tensors: list[relay.Expr]) -> relay.Expr:
    """Return a value of a type, a tuple maybe, made of the first of `tensors`, which it takes."""
    if isinstance(type_, relay.TupleType):
        return relay.Tuple([rebuilt(of, tensors) for of in type_.fields])
    return tensors.pop(0)
