"""Collective of several devices -> what each of them computes, in plain ops of Relay.

A member reads what all bring, in rank order, and makes what it keeps, so that equal kernels on
equal values give all members equal bits. Sums go from rank to rank in that order (DistIR leaves the
order open). What is read is copied to the member as any value is to where it is read.

before ==> after, for two devices

    heteroplace.all_reduce((%x0, %x1))        ==>  add(%x0, %x1)                      on both
    heteroplace.reduce_scatter((%x0, %x1))    ==>  add(%x0[:n], %x1[:n])              on the first
                                                   add(%x0[n:], %x1[n:])              on the second
    heteroplace.all_gather((%x0, %x1))        ==>  concatenate((%x0, %x1))            on both
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

from tvm import relay

from heteroplace.errors import LoweringError
from heteroplace.relay.expressions import post_order, rebuild

Shape = tuple[int, ...]


class Read(NamedTuple):
    """What a member brings."""

    value: relay.Expr
    shape: Shape


MemberOutputs = Callable[[Sequence[Read], Sequence[Shape]], list[relay.Expr]]
"""Of what members bring, and the shapes of what is made: for each output an expression."""


def member_outputs(
    kind: str,
    reads: Sequence[Read],
    shapes: Sequence[Shape],
    span: relay.Span | None = None,
) -> list[relay.Expr]:
    """Return what members make of what all bring, one expression for each output.

    Parameters
    ----------
    kind
        Name of the kind; "broadcast" makes what it reads.
    reads
        Of each device in rank order, or of the root alone.
    shapes
        Of the outputs, [num_outputs].
    span
        Given to all calls.

    Raises
    ------
    LoweringError
        There are no kernels for that kind, or the shapes are not parts along one axis.
    """
    if kind not in MEMBER_OUTPUTS:
        kinds = ", ".join(MEMBER_OUTPUTS)
        raise LoweringError(
            f"there are no kernels for collectives of kind {kind!r}; there are for {kinds}: say "
            f"what members make by lower.collectives.collectives.register_member_outputs"
        )
    outputs = MEMBER_OUTPUTS[kind](reads, shapes)
    if span is None:
        return outputs
    mapped = {read.value: read.value for read in reads}
    for expression in outputs:
        rebuild(post_order(expression), mapped, span=span)
    return [mapped[expression] for expression in outputs]


def register_member_outputs(kind: str, outputs: MemberOutputs) -> None:
    """Say what members of a kind of collective make, which `register_collective` has added."""
    MEMBER_OUTPUTS[kind] = outputs


def _sum(reads: Sequence[Read], _: Sequence[Shape]) -> list[relay.Expr]:
    return [reduce(relay.add, [read.value for read in reads])]


def _same(reads: Sequence[Read], _: Sequence[Shape]) -> list[relay.Expr]:
    return [reads[0].value]


def _joined(reads: Sequence[Read], shapes: Sequence[Shape]) -> list[relay.Expr]:
    axis = _axis([read.shape for read in reads], shapes[0])
    return [relay.concatenate([read.value for read in reads], axis)]


def _cut(reads: Sequence[Read], shapes: Sequence[Shape]) -> list[relay.Expr]:
    (read,) = reads
    return _parts(read, shapes, _axis(shapes, read.shape))


def _sums_of_parts(reads: Sequence[Read], shapes: Sequence[Shape]) -> list[relay.Expr]:
    axis = _axis(shapes, reads[0].shape)
    cut = [_parts(read, shapes, axis) for read in reads]
    return [reduce(relay.add, parts) for parts in zip(*cut, strict=True)]


def _exchanged(reads: Sequence[Read], shapes: Sequence[Shape]) -> list[relay.Expr]:
    """Member j gets the j-th part of everybody's, cut along one axis and joined along another."""
    whole = [read.shape for read in reads]
    rank = range(len(shapes[0]))
    cut = [at for at in rank if sum(shape[at] for shape in shapes) == whole[0][at]]
    join = [at for at in rank if sum(shape[at] for shape in whole) == shapes[0][at]]
    if len(cut) != 1 or len(join) != 1 or cut == join:
        raise LoweringError(
            f"an all_to_all of tensors {whole} makes {list(shapes)}; expected parts along one axis "
            f"that are joined along another one"
        )
    parts = [_parts(read, shapes, cut[0]) for read in reads]
    return [relay.concatenate(list(each), join[0]) for each in zip(*parts, strict=True)]


def _parts(whole: Read, shapes: Sequence[Shape], axis: int) -> list[relay.Expr]:
    """The parts of a tensor along an axis, of the extents there of some shapes."""
    ends = list(whole.shape)
    parts, first = [], 0
    for shape in shapes:
        begin, end = [0] * len(ends), list(ends)
        begin[axis], end[axis] = first, first + shape[axis]
        parts.append(relay.strided_slice(whole.value, begin, end))
        first = end[axis]
    return parts


def _axis(parts: Sequence[Shape], whole: Shape) -> int:
    """The axis along which parts make up a tensor."""
    differing = [at for at, extent in enumerate(whole) if any(p[at] != extent for p in parts)]
    if len(differing) == 1 and sum(part[differing[0]] for part in parts) == whole[differing[0]]:
        return differing[0]
    raise LoweringError(
        f"tensors {list(parts)} are not the parts of {whole} along one axis, which a collective "
        f"needs"
    )


MEMBER_OUTPUTS: dict[str, MemberOutputs] = {
    "all_reduce": _sum,
    "reduce": _sum,
    "broadcast": _same,
    "all_gather": _joined,
    "gather": _joined,
    "scatter": _cut,
    "reduce_scatter": _sums_of_parts,
    "all_to_all": _exchanged,
}
"""For each kind; `register_member_outputs` adds to them."""
