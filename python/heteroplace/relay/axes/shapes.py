"""Where the parts of a followed axis are after an op, and shapes that are written out in a call.

A cut axis is `blocks` x parts x the rest: each part has its range in every block. Items that run
together, and the columns of most matrices, are one block; the columns of a product for queries,
keys and values at once are three.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod

import tvm
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.relay.axes.rules import Followed
from heteroplace.relay.expressions import static_shape


class CannotFollow(UnsupportedRelayError):
    """An axis cannot be followed through an op; why, in words that go on after its name."""


def places_after_reshape(before: int, blocks: int, shape: Sequence[int]) -> list[tuple[int, int]]:
    """Return the axes of `shape`, with their numbers of blocks, that can hold the parts.

    Parameters
    ----------
    before
        Product of the extents before the followed axis.
    blocks
        Blocks of that axis.
    shape
        Into which it is reshaped. Whether an axis can be cut so is not looked at here.

    Examples
    --------
    >>> places_after_reshape(1, 3, (3, 4, 8))
    [(0, 3), (1, 1)]
    >>> places_after_reshape(3, 1, (96,))
    [(0, 3)]
    """
    places = []
    for axis in range(len(shape)):
        outer = prod(shape[:axis])
        if outer == before:
            places.append((axis, blocks))
        elif outer and (before * blocks) % outer == 0:
            places.append((axis, before * blocks // outer))
    return places


def resized_axis(
    part: Sequence[int], whole: Sequence[int], scale: Fraction, followed: Followed
) -> int | None:
    """Return the only axis whose extent in `whole` is `scale` times that in `part`.

    None: the shapes are equal.

    Raises
    ------
    CannotFollow
        They differ in another way.
    """
    if tuple(part) == tuple(whole):
        return None
    if len(part) == len(whole):
        pairs = enumerate(zip(part, whole, strict=True))
        changed = [axis for axis, (a, b) in pairs if a != b]
        if len(changed) == 1 and whole[changed[0]] == part[changed[0]] * scale:
            return changed[0]
    old, new = (part, whole) if scale.denominator == 1 else (whole, part)
    raise CannotFollow(
        f"its result of shape {tuple(old)} becomes {tuple(new)}, which is not one part for each "
        f"{followed.one} along one axis"
    )


def with_slice_of_parts(
    call: relay.Call, data: relay.Expr, shape: Sequence[int], axis: int, many: str
) -> relay.Call:
    """Return a `strided_slice` that cuts all axes but one; written with one entry for each axis.

    Parameters
    ----------
    call
        The slice, typed.
    data, shape
        What is sliced instead, and its shape: as before but along `axis`, which is kept whole.
    many
        What is along the axis, for messages.

    Raises
    ------
    CannotFollow
        It cuts or reverses the axis, or has no such form.
    """
    old, attrs = static_shape(call.args[0].checked_type), call.attrs
    if str(attrs.slice_mode) != "end" or old[axis] != static_shape(call.checked_type)[axis]:
        raise CannotFollow(f"it cuts the {many}, axis {axis} of {old}")
    begin, end, strides = [0] * len(old), list(shape), [1] * len(old)
    for at, first, last, step in slice_entries(call):
        if at == axis:
            if step < 0 and old[axis] > 1:
                raise CannotFollow(f"it reverses axis {axis} of {old}, the {many} too")
            continue
        begin[at], end[at], strides[at] = first, last, step
    if min(strides) < 0:
        raise CannotFollow("it runs backwards, which has no form with one entry per axis")
    return relay.strided_slice(data, begin, end, strides)


def slice_entries(call: relay.Call) -> list[tuple[int, int, int, int]]:
    """Return (axis, begin, end, stride) of each axis that a `strided_slice` names.

    As in TVM, of axes behind the given strides the stride is 1, and behind the given ends the end.
    """
    attrs, shape = call.attrs, static_shape(call.args[0].checked_type)
    begins, ends = ([int(at) for at in part] for part in (attrs.begin, attrs.end))
    named = range(len(begins)) if attrs.axes is None else [int(axis) for axis in attrs.axes]
    axes = [axis % len(shape) for axis in named][: len(begins)]
    ends += [shape[axis] for axis in axes[len(ends) :]]
    steps = [int(step) for step in attrs.strides or ()]
    if str(attrs.slice_mode) == "size":
        steps = []  # which are not looked at
    steps += [1] * (len(axes) - len(steps))
    return list(zip(axes, begins, ends, steps, strict=False))


def with_attributes(call: relay.Call, arguments: list[relay.Expr], **changed: object) -> relay.Call:
    """Return the call of the same op with other operands, and some attributes changed."""
    attrs = call.attrs
    if changed:
        names = [str(name) for name in attrs.keys()]  # noqa: SIM118 (they are no dict)
        fields = {name: attrs[name] for name in names}
        attrs = tvm.ir.make_node(call.op.attrs_type_key, **(fields | changed))
    return relay.Call(call.op, arguments, attrs, None, call.span)
