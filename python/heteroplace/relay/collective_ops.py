"""Collectives as ops of Relay, so that a module for several shards is one dataflow program.

What a collective reads is a tuple of tensors, one for each shard, in rank order; for `broadcast`
and `scatter`, which one shard gives, a tensor. TVM knows what they compute, so such a module runs
on one device under stock TVM: that is the reference for running it on several. Sums are made in
rank order. Nothing fuses with a collective, since it is a step of several devices.

    all_reduce((%a, %b))                     ==>  %a + %b
    all_gather((%a, %b), axis=1)             ==>  concatenate((%a, %b), axis=1)
    reduce_scatter((%a, %b), axis, parts)    ==>  split(%a + %b), in parts of those extents
    all_to_all((%a, %b), axis, join, parts)  ==>  part i of each along `axis`, joined along `join`

`reduce` and `gather` are the first two with their result on one device only; `broadcast` hands on
what it reads, `scatter` splits it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold
from typing import Any, NamedTuple

import tvm
from tvm import relay, te, topi

from heteroplace.errors import UnsupportedRelayError
from heteroplace.relay.expressions import static_shape
from heteroplace.tvm_bridge import add_relay_op

PREFIX = "heteroplace."
"""Names of the ops begin with this."""

Shape = tuple[int, ...]


class _Collective(NamedTuple):
    describe: str
    reads_one: bool
    """It reads a tensor, not one for each shard."""
    shapes: Callable[[Any, list[Shape]], list[Shape] | Shape]
    """(attributes, shapes that it reads) -> shape of its result; a list: one for each shard."""
    compute: Callable[[Any, list[te.Tensor]], list[te.Tensor]]


def register_collective_ops() -> None:
    """Make the ops known to TVM. Doing so again changes nothing."""
    for kind, collective in _COLLECTIVES.items():
        what = "the tensor" if collective.reads_one else "a tensor of each shard"
        arguments = {"data": ("Tensor" if collective.reads_one else "Tuple of Tensors", what)}
        name = PREFIX + kind
        add_relay_op(name, collective.describe, arguments, _type_of(name, collective),
                     _compute(collective))  # fmt: skip


def all_reduce(parts: Sequence[relay.Expr]) -> relay.Call:
    """Return the sum of the shards' tensors, for all of them."""
    return _call("all_reduce", relay.Tuple(list(parts)))


def all_gather(parts: Sequence[relay.Expr], axis: int) -> relay.Call:
    """Return the shards' tensors joined along an axis, for all of them."""
    return _call("all_gather", relay.Tuple(list(parts)), axis=axis)


def reduce_scatter(parts: Sequence[relay.Expr], axis: int, extents: Sequence[int]) -> relay.Call:
    """Return the sum of the shards' tensors, a part along an axis of these extents for each."""
    return _call("reduce_scatter", relay.Tuple(list(parts)), axis=axis, parts=list(extents))


def all_to_all(
    parts: Sequence[relay.Expr], axis: int, join: int, extents: Sequence[int]
) -> relay.Call:
    """Return for each shard its part along `axis` of all shards' tensors, joined along `join`."""
    tensors = relay.Tuple(list(parts))
    return _call("all_to_all", tensors, axis=axis, join=join, parts=list(extents))


def reduce(parts: Sequence[relay.Expr]) -> relay.Call:
    """Return the sum of the shards' tensors, for one of them."""
    return _call("reduce", relay.Tuple(list(parts)))


def gather(parts: Sequence[relay.Expr], axis: int) -> relay.Call:
    """Return the shards' tensors joined along an axis, for one of them."""
    return _call("gather", relay.Tuple(list(parts)), axis=axis)


def broadcast(data: relay.Expr) -> relay.Call:
    """Return a tensor of one shard, for all of them."""
    return _call("broadcast", data)


def scatter(data: relay.Expr, axis: int, extents: Sequence[int]) -> relay.Call:
    """Return a tensor of one shard, a part along an axis of these extents for each."""
    return _call("scatter", data, axis=axis, parts=list(extents))


def is_collective(expr: relay.Expr) -> bool:
    """Say whether `expr` calls a collective."""
    if not isinstance(expr, relay.Call) or not isinstance(expr.op, tvm.ir.Op):
        return False
    return expr.op.name in {PREFIX + kind for kind in _COLLECTIVES}


def _call(kind: str, data: relay.Expr, **attributes: object) -> relay.Call:
    register_collective_ops()
    attrs = tvm.ir.make_node("DictAttrs", **attributes)
    return relay.Call(tvm.ir.Op.get(PREFIX + kind), [data], attrs)


def _type_of(name: str, collective: _Collective) -> Callable[[Any, Any], tvm.ir.Type | None]:
    def type_of(arguments: Any, attrs: Any) -> tvm.ir.Type | None:
        (data,) = arguments
        fields = list(data.fields) if isinstance(data, relay.TupleType) else [data]
        if not all(isinstance(field, relay.TensorType) for field in fields):
            return None
        if isinstance(data, relay.TupleType) == collective.reads_one or not fields:
            expected = "a tensor" if collective.reads_one else "a tuple of tensors, one a shard"
            raise UnsupportedRelayError(f"{name} reads {expected}; it got {data}")
        types = {field.dtype for field in fields}
        if len(types) > 1:
            raise UnsupportedRelayError(f"{name} reads tensors of unlike types: {sorted(types)}")
        (dtype,) = types
        try:
            shapes = collective.shapes(attrs, [static_shape(field) for field in fields])
        except ValueError as err:
            raise UnsupportedRelayError(f"{name}: {err}") from err
        if isinstance(shapes, list):
            return relay.TupleType([relay.TensorType(shape, dtype) for shape in shapes])
        return relay.TensorType(shapes, dtype)

    return type_of


def _compute(collective: _Collective) -> Callable[[Any, Any, Any], list[te.Tensor]]:
    def compute(attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
        return collective.compute(attrs, list(tensors))

    return compute


def _same(_: Any, shapes: list[Shape]) -> Shape:
    if len(set(shapes)) > 1:
        raise ValueError(f"tensors of unlike shapes cannot be added: {shapes}")
    return shapes[0]


def _joined(shapes: list[Shape], axis: int) -> Shape:
    others = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(others) > 1 or not 0 <= axis < len(shapes[0]):
        raise ValueError(f"{shapes} cannot be joined along axis {axis}")
    return (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])


def _parts(attrs: Any, shape: Shape) -> list[Shape]:
    axis, extents = int(attrs["axis"]), [int(extent) for extent in attrs["parts"]]
    if not 0 <= axis < len(shape) or sum(extents) != shape[axis] or min(extents) < 1:
        raise ValueError(f"axis {axis} of {shape} has no parts of {extents}")
    return [(*shape[:axis], extent, *shape[axis + 1 :]) for extent in extents]


def _exchanged(attrs: Any, shapes: list[Shape]) -> list[Shape]:
    parts = [_parts(attrs, shape) for shape in shapes]
    if len(parts[0]) != len(shapes):
        raise ValueError(f"{len(shapes)} shards exchange {len(parts[0])} parts each")
    received = zip(*parts, strict=True)
    return [_joined(list(mine), int(attrs["join"])) for mine in received]


def _cut(attrs: Any, tensor: te.Tensor) -> list[te.Tensor]:
    extents = [int(extent) for extent in attrs["parts"]]
    places = [sum(extents[:count]) for count in range(1, len(extents))]
    return list(topi.split(tensor, places, int(attrs["axis"]))) if places else [tensor]


def _sum(tensors: list[te.Tensor]) -> te.Tensor:
    return fold(topi.add, tensors)  # from the left, which is rank order


def _copy(tensor: te.Tensor) -> te.Tensor:
    """A tensor of its own: what an op makes cannot be what it reads."""
    return te.compute(tensor.shape, lambda *at: tensor(*at))


def _made(tensors: list[te.Tensor], results: list[te.Tensor]) -> list[te.Tensor]:
    return [
        _copy(result) if any(result.same_as(tensor) for tensor in tensors) else result
        for result in results
    ]


def _exchange(attrs: Any, tensors: list[te.Tensor]) -> list[te.Tensor]:
    received = zip(*(_cut(attrs, tensor) for tensor in tensors), strict=True)
    return [topi.concatenate(mine, int(attrs["join"])) for mine in received]


_SUMMED = (_same, lambda _, tensors: _made(tensors, [_sum(tensors)]))
_JOINED = (
    lambda attrs, shapes: _joined(shapes, int(attrs["axis"])),
    lambda attrs, tensors: [topi.concatenate(tensors, int(attrs["axis"]))],
)

_COLLECTIVES = {
    "all_reduce": _Collective("The sum, for all shards.", False, *_SUMMED),
    "reduce": _Collective("The sum, for one shard.", False, *_SUMMED),
    "all_gather": _Collective("All parts joined, for all shards.", False, *_JOINED),
    "gather": _Collective("All parts joined, for one shard.", False, *_JOINED),
    "reduce_scatter": _Collective(
        "The sum, a part for each shard.",
        False,
        lambda attrs, shapes: _parts(attrs, _same(attrs, shapes)),
        lambda attrs, tensors: _made(tensors, _cut(attrs, _sum(tensors))),
    ),
    "all_to_all": _Collective("A part of each shard, for each.", False, _exchanged, _exchange),
    "broadcast": _Collective(
        "A tensor of one shard, for all.",
        True,
        _same,
        lambda _, tensors: _made(tensors, tensors),
    ),
    "scatter": _Collective(
        "A tensor of one shard, a part for each.",
        True,
        lambda attrs, shapes: _parts(attrs, shapes[0]),
        lambda attrs, tensors: _made(tensors, _cut(attrs, tensors[0])),
    ),
}
