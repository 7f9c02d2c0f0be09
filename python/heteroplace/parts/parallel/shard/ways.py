"""How the shards may compute one op: which operands are exchanged first, and what that costs.

The cost of a way are the bytes that a ring moves for it, in units of one pass around: an all-reduce
has two, an all-gather and a reduce-scatter one (Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", section 3). To cut what is whole costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from heteroplace.parts.parallel.shard.carry import CannotCarry, Carrier, OtherCut, States, is_linear
from heteroplace.parts.parallel.shard.cuts import Cut, Kept, State
from heteroplace.parts.parallel.shard.sharded_network import Node


class Way(NamedTuple):
    """One way to compute an op on all shards."""

    needs: States
    """Of the tensors that it reads."""
    outs: States
    """Of those that it makes."""
    gathered: int
    """Bytes moved before it to put parts together."""
    summed: int
    """Bytes moved to add up summands, those of its result among them."""

    @property
    def cost(self) -> int:
        """Bytes moved for it."""
        return self.gathered + self.summed


def way_to(call: Node, states: Sequence[State | None], needs: States, outs: States) -> Way:
    """Return a way with what it moves.

    Parameters
    ----------
    states
        What the shards have of the operands; None: a weight that is not cut yet, and can have any
        state.
    needs, outs
        What they need of them, and have of the results.
    """
    gathered = summed = 0
    for state, need, size in zip(states, needs, call.operand_bytes, strict=True):
        if state is Kept.SUM and need is not Kept.SUM:
            summed += 2 * size if need is Kept.WHOLE else size
        elif isinstance(state, Cut) and state != need:
            gathered += size
    for out, size in zip(outs, call.bytes, strict=True):
        if out is Kept.SUM and Kept.SUM not in needs:
            summed += 2 * size
    return Way(needs, outs, gathered, summed)


def ways(
    carrier: Carrier, call: Node, states: Sequence[State | None], others: list[OtherCut]
) -> Iterator[Way]:
    """Yield the ways to follow each of the cuts of the operands; the last one needs all whole.

    Parameters
    ----------
    states
        Of the tensors that the call reads; None as of `way_to`.
    others
        Gets the other cuts with which an operand could have been followed.
    """
    count, num_results = len(states), len(call.shapes)
    if is_linear(call, states):
        yield way_to(call, states, (Kept.SUM,) * count, (Kept.SUM,) * num_results)
    tried: list[States] = []
    for at, state in enumerate(states):
        if not isinstance(state, Cut):
            continue
        try:
            needs = carrier.companions(call, at, state)
            if needs in tried:
                continue
            tried.append(needs)
            outs = carrier.carry(call, needs)
        except CannotCarry as err:
            others += err.others
            continue
        yield way_to(call, states, needs, outs)
    yield way_to(call, states, (Kept.WHOLE,) * count, (Kept.WHOLE,) * num_results)


def best_way(
    carrier: Carrier, call: Node, states: Sequence[State | None], others: list[OtherCut]
) -> Way:
    """Return the way of least cost; a product is shared by the shards wherever it can be."""
    *shared, whole = ways(carrier, call, states, others)
    labels = carrier.labels(call)
    is_product = labels is not None and labels.is_product
    return min(shared if is_product and shared else [*shared, whole], key=lambda way: way.cost)
