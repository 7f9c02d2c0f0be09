"""How a product with a weight is shared by the shards: its cut is followed before it is chosen.

Megatron-LM (arXiv 1909.08053, section 3) shares a transformer's weights by hand: columns first, so
that each shard has a part of the result, then rows, whose results are added up; attention by
heads. Here the columns of a weight are cut tentatively, in equal parts or as a reader down the
network asks for (within blocks, in whole heads), and each cut is followed until its parts are added
up or have to be gathered. What gathers the fewest bytes is taken, then what adds up the fewest;
rows, if no columns can be cut.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterator, Sequence
from typing import NamedTuple

from tvm import relay

from heteroplace.errors import ShardingError
from heteroplace.parts.parallel.shard.carry import CannotCarry, Carrier, OtherCut
from heteroplace.parts.parallel.shard.cuts import Cut, Kept, State, share_out
from heteroplace.parts.parallel.shard.sharded_network import Node
from heteroplace.parts.parallel.shard.ways import Way, best_way, way_to

OpenStates = list["State | None"]
"""None: a weight that is not cut yet, or what was not visited yet: it can have any state."""

_MAX_FOLLOWED = 400
"""Expressions that a cut is followed through; it is gathered or added up long before."""
_MAX_VARIANTS = 12
"""Cuts of one axis that are tried."""


class _Variant(NamedTuple):
    way: Way
    gathered: int
    """Bytes that are moved to put its parts together again, all in all."""
    summed: int
    """Bytes that are moved to add up."""
    uneven: str
    """How unlike the parts are, if they are so by whole units; "" if not."""


class Network(NamedTuple):
    """What following a cut needs to know of the network."""

    nodes: Sequence[Node]
    position: dict[Node, int]
    readers: dict[Node, list[Node]]
    gathered: Sequence[bool]
    """For each output whether it must be whole in the end."""
    backward: Container[Node]
    """What computes gradients and updates: it is cut as what it is the gradient of."""


class CutChooser:
    """Finds for products how to cut their weights."""

    def __init__(
        self,
        network: Network,
        carrier: Carrier,
        num_shards: int,
        states_of: Callable[[Node], OpenStates],
        uneven: bool | None,
    ) -> None:
        self._network = network
        self._carrier = carrier
        self._num_shards = num_shards
        self._states_of = states_of
        self._uneven = uneven

    def choose(self, call: Node, states: Sequence[State | None]) -> Way | None:
        """Return the way to share a product whose weights are not cut yet; None: there is none.

        Raises
        ------
        ShardingError
            The best way has uneven parts, and whether they may be was not said.
        """
        for has_columns in (True, False):
            variants = list(self._variants(call, states, has_columns))
            if self._uneven is False:
                variants = [variant for variant in variants if not variant.uneven]
            if not variants:
                continue
            # Parts that are gathered early would leave the rest of the network to each shard.
            best = min(variants, key=lambda variant: (variant.gathered, variant.summed))
            if best.uneven and self._uneven is None:
                raise ShardingError(
                    f"{_where(call)} cannot be shared evenly by {self._num_shards} shards: "
                    f"{best.uneven}. Take another number of shards, or say uneven=True to share it "
                    f"so, uneven=False to share it in another way that exchanges more"
                )
            return best.way
        return None

    def _variants(
        self, call: Node, states: Sequence[State | None], has_columns: bool
    ) -> Iterator[_Variant]:
        labels = self._carrier.labels(call)
        assert labels is not None  # a product has some
        shapes = call.operand_shapes
        for operand, state in enumerate(states):
            if state is not None:
                continue
            for axis, label in enumerate(labels.operands[operand]):
                if label and (label in labels.result) == has_columns:
                    extent = shapes[operand][axis]
                    yield from self._variants_of(call, states, operand, axis, extent)

    def _variants_of(
        self, call: Node, states: Sequence[State | None], operand: int, axis: int, extent: int
    ) -> Iterator[_Variant]:
        """The cuts of one axis of a weight: equal parts, then those that readers ask for."""
        waiting: list[OtherCut] = [OtherCut(1, None)]
        tried: set[Cut] = set()
        while waiting and len(tried) < _MAX_VARIANTS:
            variant = waiting.pop(0)
            cut, uneven = self._cut(axis, extent, variant)
            if cut is None or cut in tried:
                continue
            tried.add(cut)
            others: list[OtherCut] = []
            try:
                needs = self._carrier.companions(call, operand, cut)
                way = way_to(call, states, needs, self._carrier.carry(call, needs))
            except CannotCarry as err:
                others += err.others
            else:
                gathered, summed = self._follow(call, way.outs, others)
                yield _Variant(way, way.gathered + gathered, way.summed + summed, uneven)
            for other in others:
                waiting.append(
                    OtherCut(variant.blocks * other.blocks, other.units or variant.units)
                )

    def _cut(self, axis: int, extent: int, other_cut: OtherCut) -> tuple[Cut | None, str]:
        """The cut of an axis, and how uneven it is; None: there is no such cut."""
        block, rest = divmod(extent, other_cut.blocks)
        if rest:
            return None, ""
        units = block if other_cut.units is None else other_cut.units
        if block % units or units < self._num_shards:
            return None, ""
        shares = share_out(units, self._num_shards)
        cut = Cut(axis, shares, other_cut.blocks)
        if units == block or len(set(shares)) == 1:
            return cut, ""  # parts that differ by a single column at most
        shared = "+".join(map(str, shares))
        return cut, f"an axis of {extent} has {units} units of {block // units}, {shared}"

    def _follow(self, call: Node, outs: Sequence[State], others: list[OtherCut]) -> tuple[int, int]:
        """The bytes that are gathered, and summed, until no parts of the result are left."""
        network = self._network
        states_of: dict[Node, OpenStates] = {call: [_summed(state) for state in outs]}
        waiting: list[int] = []
        gathered, summed = self._reached(call, states_of[call], waiting), 0
        while waiting and len(states_of) < _MAX_FOLLOWED:
            node = network.nodes[heapq.heappop(waiting)]
            if node in states_of:
                continue
            states = [
                state
                for child in node.children
                for state in (states_of.get(child) or self._states_of(child))
            ]
            if isinstance(node.expr, relay.TupleGetItem):
                states = node.field_of(states)
            if node.op:
                if not any(isinstance(state, Cut) for state in states):
                    continue
                way = best_way(self._carrier, node, states, others)
                gathered, summed = gathered + way.gathered, summed + way.summed
                _keep_gathered(node, way, states_of)
                states = [_summed(state) for state in way.outs]
            states_of[node] = states
            gathered += self._reached(node, states, waiting)
        return gathered, summed

    def _reached(self, node: Node, states: OpenStates, waiting: list[int]) -> int:
        """Go on to the readers; the bytes that are gathered if `node` is the end of the network."""
        if not any(isinstance(state, Cut) for state in states):
            return 0
        network = self._network
        for reader in network.readers.get(node, ()):
            if reader not in network.backward or node in network.backward:
                heapq.heappush(waiting, network.position[reader])
        if node is not network.nodes[-1]:
            return 0
        outputs = zip(states, node.bytes, network.gathered, strict=True)
        return sum(
            size for state, size, is_gathered in outputs if is_gathered and isinstance(state, Cut)
        )


def _keep_gathered(node: Node, way: Way, states_of: dict[Node, OpenStates]) -> None:
    """What was gathered for one reader is whole for those that follow."""
    needs = iter(way.needs)
    for child in node.children:
        for at in range(len(child.shapes)):
            if next(needs) is Kept.WHOLE and child in states_of:
                states_of[child][at] = Kept.WHOLE


def _summed(state: State) -> State:
    """A sum is added up at once, as far as a cut is followed."""
    return Kept.WHOLE if state is Kept.SUM else state


def _where(call: Node) -> str:
    return f"{call.op} of {call.name!r}" if call.name else call.op
