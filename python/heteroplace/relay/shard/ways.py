"""How the shards may compute one op: which operands are exchanged first, and what that costs.

The cost of a way are the bytes that a ring moves for it, in units of one pass around: an all-reduce
has two, an all-gather and a reduce-scatter one (Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", section 3). To cut what is whole costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from heteroplace.relay.shard.carry import CannotCarry, Carrier, OtherCut, States, is_linear
from heteroplace.relay.shard.cuts import Cut, Kept, State
from heteroplace.relay.shard.network import Node


class Way(NamedTuple):
    """One way to compute an op on all shards."""

    needs: States
    """Of the tensors that it reads."""
    outs: States
    """Of those that it makes."""
    cost: int
    """Bytes moved before it, and to add up its result."""


def exchange_cost(state: State | None, need: State, num_bytes: int) -> int:
    """Return the bytes moved to bring a tensor from one state to another.

    None: it is a weight that is not cut yet, and can have any state.
    """
    if state is None or state == need or state is Kept.WHOLE:
        return 0
    return 2 * num_bytes if state is Kept.SUM and need is Kept.WHOLE else num_bytes


def ways(
    carrier: Carrier, call: Node, states: Sequence[State | None], others: list[OtherCut]
) -> Iterator[Way]:
    """Yield the ways to follow each of the cuts of the operands; the last one needs all whole.

    Parameters
    ----------
    states
        Of the tensors that the call reads; None as of `exchange_cost`.
    others
        Gets the other cuts with which an operand could have been followed.
    """
    operands, results = call.operand_bytes, call.bytes
    if is_linear(call, states):
        yield Way((Kept.SUM,) * len(operands), (Kept.SUM,) * len(results), 0)
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
        yield Way(needs, outs, _cost(states, needs, operands) + _sums(outs, results))
    whole = (Kept.WHOLE,) * len(operands)
    yield Way(whole, (Kept.WHOLE,) * len(results), _cost(states, whole, operands))


def best_way(
    carrier: Carrier, call: Node, states: Sequence[State | None], others: list[OtherCut]
) -> Way:
    """Return the way of least cost; a product is shared by the shards wherever it can be."""
    *shared, whole = ways(carrier, call, states, others)
    labels = carrier.labels(call)
    is_product = labels is not None and labels.is_product
    return min(shared if is_product and shared else [*shared, whole], key=lambda way: way.cost)


def _cost(states: Sequence[State | None], needs: States, sizes: Sequence[int]) -> int:
    return sum(
        exchange_cost(state, need, size)
        for state, need, size in zip(states, needs, sizes, strict=True)
    )


def _sums(outs: States, sizes: Sequence[int]) -> int:
    pairs = zip(outs, sizes, strict=True)
    return sum(2 * size for state, size in pairs if state is Kept.SUM)
