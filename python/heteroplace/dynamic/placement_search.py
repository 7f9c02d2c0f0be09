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

from heteroplace.dynamic.placement_problem import (
    Array,
    BranchMemories,
    PlacementProblem,
    fits,
    in_order,
    layer_loads,
    objective,
    relaxed_bound,
    used_bytes,
)

NUM_STARTS = 8
_NUM_KICKS = 24
_KICKED_SHARE = 0.3
"""Of a layer's members that change their memory before the search goes on from the best one."""
_LEAST_GAIN = 1e-9
"""As a part of the objective: less is rounding."""


def search_placement(problem: PlacementProblem, seed: int = 0) -> BranchMemories | None:
    """Return the best placement found, never worse than `in_order`; None: none fits.

    Reproducible: equal seeds give equal placements.
    """
    random = Random(seed)
    search = _Search(problem)
    best: BranchMemories | None = None
    start = in_order(problem)
    if fits(problem, start):
        best = start
    bound = relaxed_bound(problem)
    for index in range(NUM_STARTS + _NUM_KICKS):
        if best is not None and objective(problem, best) <= bound * (1 + _LEAST_GAIN):
            break
        if index == 0:
            begin = start
        elif index < NUM_STARTS or best is None:
            begin = _shuffled(problem, random)
        else:
            begin = _kicked(problem, best, random)
        found = search.improved(begin)
        if fits(problem, found) and (best is None or search.is_less(found, best)):
            best = found
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
        self._cells = [np.array(matrix) for matrix in problem.cells]

    def is_less(self, one: BranchMemories, other: BranchMemories) -> bool:
        """Whether a placement costs less, by more than rounding."""
        before = objective(self._problem, other)
        return objective(self._problem, one) < before * (1 - _LEAST_GAIN)

    def improved(self, placement: BranchMemories) -> BranchMemories:
        """Place layers in turns, then exchange members, until neither pays."""
        best = placement
        while True:
            found = self._exchanged(self._swept(best))
            before, after = self._overflow(best), self._overflow(found)
            if after > before or (after == before and not self.is_less(found, best)):
                return best
            best = found

    def _swept(self, placement: BranchMemories) -> BranchMemories:
        """Assign layers forward and backward until a turn gains nothing."""
        best = placement
        order = [*range(len(best)), *range(len(best) - 2, -1, -1)]
        while True:
            found = list(best)
            for index in order:
                if self._problem.layers[index].fixed is None:
                    found[index] = self._assigned(index, found)
            if not self.is_less(tuple(found), best):
                return best
            best = tuple(found)

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
        found = [-1] * layer.num_members
        for row, column in zip(rows, columns, strict=True):
            found[int(row)] = slots[int(column)]
        left = [member for member, memory in enumerate(found) if memory < 0]
        if most > fewest:
            # What is over: at most one more for each memory.
            rows, columns = linear_sum_assignment(costs[left])
            for row, column in zip(rows, columns, strict=True):
                found[left[int(row)]] = int(column)
        return tuple(found)

    def _exchanged(self, placement: BranchMemories) -> BranchMemories:
        """Exchange two members of a layer, or move one, while that pays."""
        found = list(placement)
        is_changed = True
        while is_changed:
            is_changed = False
            for index, layer in enumerate(self._problem.layers):
                if layer.fixed is None:
                    while (better := self._best_change(index, found)) is not None:
                        found[index] = better
                        is_changed = True
        return tuple(found)

    def _best_change(self, index: int, placement: list[tuple[int, ...]]) -> tuple[int, ...] | None:
        """The layer after the change that gains most; None: none gains anything."""
        problem, members = self._problem, placement[index]
        layer = problem.layers[index]
        costs = self._costs(index, placement)
        now = np.array(members)
        here = costs[np.arange(len(members)), now]
        # delta[e, f]: e and f, of different memories, exchange their places.
        delta = costs[:, now] - here[:, None]
        delta = delta + delta.T
        slack = _LEAST_GAIN * max(1.0, objective(problem, tuple(placement)))
        weighs = bool(layer.load_ns) or bool(problem.memory_bytes and layer.weight_bytes)
        if not weighs:
            # All that a change does is in delta: the least one is the best.
            one, other = np.unravel_index(int(np.argmin(delta)), delta.shape)
            if delta[one, other] < -slack:
                return _swapped(members, int(one), int(other))
        best: tuple[int, ...] | None = None
        state = self._state(index, placement, members)
        candidates = _moves(problem, index, members)
        if weighs:
            candidates += [
                _swapped(members, one, other)
                for one in range(len(members))
                for other in range(one)
                if members[one] != members[other]
            ]
        for changed in candidates:
            after = self._state(index, placement, changed)
            if after[0] < state[0] or (after[0] == state[0] and after[1] < state[1] - slack):
                best, state = changed, after
        return best

    def _state(
        self, index: int, placement: list[tuple[int, ...]], members: tuple[int, ...]
    ) -> tuple[int, float]:
        """Bytes over the memories' room, and what a layer costs with its neighbours."""
        problem = self._problem
        changed = (*placement[:index], members, *placement[index + 1 :])
        costs = self._costs(index, changed)
        total = float(costs[np.arange(len(members)), list(members)].sum())
        total += max(layer_loads(problem, problem.layers[index], members), default=0.0)
        return self._overflow(changed), total

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


def _moves(
    problem: PlacementProblem, index: int, members: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """Every way to move one member that keeps an even layer even."""
    fewest, most = problem.even_sizes(problem.layers[index])
    counts = [members.count(memory) for memory in range(problem.num_memories)]
    return [
        (*members[:member], memory, *members[member + 1 :])
        for member, now in enumerate(members)
        if counts[now] > fewest
        for memory in range(problem.num_memories)
        if memory != now and counts[memory] < most
    ]
