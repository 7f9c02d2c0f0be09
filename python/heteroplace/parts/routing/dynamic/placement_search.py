"""PlacementProblem -> a good placement: layer by layer by assignment, then exchanges of members.

Given its neighbours, the best even placement of one layer is a linear assignment of members to the
slots of memories (each memory's row is there as often as it has slots). Layers are placed so in
turns, forward and backward, until nothing gets better; then members of a layer are exchanged, or
moved, while that pays, which also looks at the slowest device and at bytes. All of it starts from
the members in order and from random placements, and from the best one with a part of it changed.
"""

from __future__ import annotations

from random import Random

import numpy as np

from heteroplace.parts.routing.dynamic.placement_changes import LayerChanges
from heteroplace.parts.routing.dynamic.placement_problem import (
    Array,
    BranchMemories,
    PlacementProblem,
    fits,
    in_order,
    objective,
    relaxed_bound,
    used_bytes,
)
from heteroplace.solve.deadline import NEVER, Deadline

NUM_STARTS = 8
_NUM_KICKS = 24
_KICKED_SHARE = 0.3
"""Of a layer's members that change their memory before the search goes on from the best one."""
_MIN_GAIN = 1e-9
"""As a part of the objective: less is rounding."""


def search_placement(
    problem: PlacementProblem, seed: int = 0, deadline: Deadline = NEVER
) -> BranchMemories | None:
    """Return the best placement found, never worse than `in_order`; None: none was found that fits.

    Reproducible: equal seeds give equal placements, unless the deadline ends it: behind the first
    start none begins after that.
    """
    random = Random(seed)
    search = _Search(problem)
    best: BranchMemories | None = None
    start = in_order(problem)
    if fits(problem, start):
        best = start
    bound = relaxed_bound(problem)
    for index in range(NUM_STARTS + _NUM_KICKS):
        if index and deadline.is_over():
            break
        if best is not None and objective(problem, best) <= bound * (1 + _MIN_GAIN):
            break
        if index == 0:
            begin = start
        elif index < NUM_STARTS or best is None:
            begin = _shuffled(problem, random)
        else:
            begin = _kicked(problem, best, random)
        placement = search.improved(begin)
        if fits(problem, placement) and (best is None or search.is_less(placement, best)):
            best = placement
    return best


def _shuffled(problem: PlacementProblem, random: Random) -> BranchMemories:
    """Even layers in a random order; others anywhere."""
    layers = []
    for layer, members in zip(problem.layers, in_order(problem), strict=True):
        if layer.fixed is not None:
            layers.append(layer.fixed)
        elif layer.is_even:
            layers.append(tuple(random.sample(members, len(members))))
        else:
            layers.append(tuple(random.randrange(problem.num_memories) for _ in members))
    return tuple(layers)


def _kicked(problem: PlacementProblem, best: BranchMemories, random: Random) -> BranchMemories:
    """The placement with some members of each layer exchanged."""
    layers = []
    for layer, members in zip(problem.layers, best, strict=True):
        changed = list(members)
        if layer.fixed is None:
            size = max(2, round(_KICKED_SHARE * len(members)))
            chosen = random.sample(range(len(members)), min(size, len(members)))
            for one, other in zip(chosen, random.sample(chosen, len(chosen)), strict=True):
                changed[one] = members[other]
        layers.append(tuple(changed))
    return tuple(layers)


class _Search:
    """Descends from one placement to one that no single change makes better."""

    def __init__(self, problem: PlacementProblem) -> None:
        self._problem = problem
        self._move = problem.move_ns
        self._cells = problem.cell_arrays

    def is_less(self, one: BranchMemories, other: BranchMemories) -> bool:
        """Whether a placement costs less, by more than rounding."""
        before = objective(self._problem, other)
        return objective(self._problem, one) < before * (1 - _MIN_GAIN)

    def improved(self, placement: BranchMemories) -> BranchMemories:
        """Place layers in turns, then exchange members, until neither pays."""
        best = placement
        while True:
            better = self._exchanged(self._swept(best))
            before, after = self._overflow(best), self._overflow(better)
            if after > before or (after == before and not self.is_less(better, best)):
                return best
            best = better

    def _swept(self, placement: BranchMemories) -> BranchMemories:
        """Assign layers forward and backward until a turn gains nothing."""
        best = placement
        order = [*range(len(best)), *range(len(best) - 2, -1, -1)]
        while True:
            changed = list(best)
            for index in order:
                if self._problem.layers[index].fixed is None:
                    changed[index] = self._assigned(index, changed)
            if not self.is_less(tuple(changed), best):
                return best
            best = tuple(changed)

    def _costs(self, index: int, placement: BranchMemories | list[tuple[int, ...]]) -> Array:
        """What each member of a layer costs in each memory, given the layers beside it, without
        the slowest device. [num_members][num_memories]"""
        layer = self._problem.layers[index]
        costs = np.zeros((layer.num_members, self._problem.num_memories))
        if index:
            costs += self._cells[index - 1].T @ self._move[list(placement[index - 1])]
        if index + 1 < len(placement):
            costs += self._cells[index] @ self._move[:, list(placement[index + 1])].T
        return costs

    def _assigned(
        self, index: int, placement: BranchMemories | list[tuple[int, ...]]
    ) -> tuple[int, ...]:
        """The best placement of a layer for its neighbours, by cells and mean times."""
        from scipy.optimize import linear_sum_assignment

        layer = self._problem.layers[index]
        costs = self._costs(index, placement)
        if layer.load_ns:
            # The slowest device is no sum; its share is what exchanges look at later.
            costs = costs + np.array(layer.load_ns) / self._problem.num_memories
        if not layer.is_even:
            return tuple(int(memory) for memory in np.argmin(costs, axis=1))
        fewest, most = self._problem.even_sizes(layer)
        slots = [memory for _ in range(fewest) for memory in range(self._problem.num_memories)]
        rows, columns = linear_sum_assignment(costs[:, slots]) if slots else ([], [])
        memories = [-1] * layer.num_members
        for row, column in zip(rows, columns, strict=True):
            memories[int(row)] = slots[int(column)]
        left = [member for member, memory in enumerate(memories) if memory < 0]
        if most > fewest:
            # What is over: at most one more for each memory.
            rows, columns = linear_sum_assignment(costs[left])
            for row, column in zip(rows, columns, strict=True):
                memories[left[int(row)]] = int(column)
        return tuple(memories)

    def _exchanged(self, placement: BranchMemories) -> BranchMemories:
        """Exchange two members of a layer, or move one, while that pays."""
        exchanged = list(placement)
        is_changed = True
        while is_changed:
            is_changed = False
            for index, layer in enumerate(self._problem.layers):
                if layer.fixed is None:
                    while (better := self._best_change(index, exchanged)) is not None:
                        exchanged[index] = better
                        is_changed = True
        return tuple(exchanged)

    def _best_change(self, index: int, placement: list[tuple[int, ...]]) -> tuple[int, ...] | None:
        """The layer after the change that gains most; None: none gains anything."""
        problem, members = self._problem, placement[index]
        layer = problem.layers[index]
        costs = self._costs(index, placement)
        now = np.array(members)
        slack = _MIN_GAIN * max(1.0, objective(problem, tuple(placement)))
        weighs = bool(layer.load_ns) or bool(problem.memory_bytes and layer.weight_bytes)
        if not weighs:
            # delta[e, f]: e and f, of different memories, exchange their places; that is all that a
            # change does, so the least one is the best.
            delta = costs[:, now] - costs[np.arange(len(members)), now][:, None]
            delta = delta + delta.T
            one, other = np.unravel_index(int(np.argmin(delta)), delta.shape)
            if delta[one, other] < -slack:
                return _swapped(members, int(one), int(other))
        sizes = problem.even_sizes(layer)
        changes = LayerChanges(now, problem.num_memories, sizes, with_exchanges=weighs)
        cost, least = changes.costs(costs), -slack
        if layer.load_ns:
            before, slowest = changes.slowest(np.array(layer.load_ns))
            cost += slowest - before
        over, above = 0, np.zeros(len(cost), dtype=np.int64)
        if problem.memory_bytes:
            weights = np.array(layer.weight_bytes or (0,) * len(members), dtype=np.int64)
            used = np.array(used_bytes(problem, tuple(placement)), dtype=np.int64)
            over, above = changes.overflow(weights, used - np.array(problem.memory_bytes))
        best: tuple[int, ...] | None = None
        for change in np.flatnonzero((above < over) | ((above == over) & (cost < least))).tolist():
            if above[change] < over or (above[change] == over and cost[change] < least):
                over, least = above[change], cost[change] - slack
                best = changes.after(change)
        return best

    def _overflow(self, placement: BranchMemories) -> int:
        problem = self._problem
        if not problem.memory_bytes:
            return 0
        used = used_bytes(problem, placement)
        return sum(
            max(0, have - room) for have, room in zip(used, problem.memory_bytes, strict=True)
        )


def _swapped(members: tuple[int, ...], one: int, other: int) -> tuple[int, ...]:
    changed = list(members)
    changed[one], changed[other] = members[other], members[one]
    return tuple(changed)
