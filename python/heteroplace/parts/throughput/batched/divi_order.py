"""Condition 7 of DiviML: of two batches on a unit one comes before the other.

Its rows are left out where edges order the batches anyway (transitive closure), or where the
horizon leaves one order only. Unlike DiviML: the condition is for devices that share a unit, and
with several items a pair is left out only if the two batches have an item in common.
"""

from __future__ import annotations

import math
from itertools import combinations

from heteroplace.parts.throughput.batched.divi_model import BatchModel, Slot
from heteroplace.parts.throughput.batched.divi_rules import reachability


def add_order(model: BatchModel) -> None:
    """Add the rows to a programme that has none of them."""
    _Order(model).add()


class _Order:
    def __init__(self, model: BatchModel) -> None:
        self._model = model
        self._after = reachability(model.problem)
        self._first_of: dict[tuple[int, int], int] = {}

    def add(self) -> None:
        """Condition 7: of two batches on a unit one comes before the other."""
        units = [set(ids) for ids in self._model.problem.cluster.unit_ids]
        everything = [slot for slots in self._model.slots for slot in slots]
        for one, other in combinations(everything, 2):
            self._model.deadline.check()
            if units[one.device] & units[other.device] and not self._is_ordered(one, other):
                self._add_disjunction(one, other)

    def _is_ordered(self, one: Slot, other: Slot) -> bool:
        """Whether edges order two batches, or both cannot be; the task of `one` is not later."""
        if self._model.num_items == 1 and one.task == other.task:
            return True
        if not self._model.rules.reduces_pairs or not self._after[one.task] >> other.task & 1:
            return False
        if self._model.num_items == 1 or self._model.rules.condition3 == "published":
            return True
        # Ordered if they have an item in common: equal batches, or too large to be apart.
        return one.items == other.items or min(one.sizes) + min(other.sizes) > self._model.num_items

    def _add_disjunction(self, one: Slot, other: Slot) -> None:
        if (one.task, one.device) == (other.task, other.device):
            self._add_before(one, other, None)
            filled = [*self._model.exists(other), *self._model.exists(one, -1.0)]
            self._model.program.add_row(filled, -math.inf, 0.0)
            return
        if self._can_precede(one, other) and self._can_precede(other, one):
            column = self._order_column(one, other)
            self._add_before(one, other, (column, 1.0))
            self._add_before(other, one, (column, 0.0))
        elif self._can_precede(one, other):
            self._add_before(one, other, None)
        elif self._can_precede(other, one):
            self._add_before(other, one, None)
        else:
            self._model.program.add_row(
                [*self._model.exists(one), *self._model.exists(other)], -math.inf, 1.0
            )

    def _can_precede(self, one: Slot, other: Slot) -> bool:
        runs = min(one.times.values()) + min(other.times.values())
        ends = self._model.head[one.task] + self._model.tail[other.task]
        return ends + runs <= self._model.horizon_ns

    def _order_column(self, one: Slot, other: Slot) -> int:
        if not self._model.has_one_start:
            return self._model.program.add_binary()
        pair = (one.task, other.task)
        if pair not in self._first_of:
            self._first_of[pair] = self._model.program.add_binary()
        return self._first_of[pair]

    def _add_before(self, one: Slot, other: Slot, choice: tuple[int, float] | None) -> None:
        """`one` ends before `other` starts if both exist and the choice has the given value."""
        room = max(
            0.0, self._model.latest(one.task) - self._model.unit(self._model.head[other.task])
        )
        terms = [(one.start, 1.0), *self._model.duration(one), (other.start, -1.0)]
        terms += [*self._model.exists(one, room), *self._model.exists(other, room)]
        limit = 2 * room
        if choice is not None:
            column, value = choice
            terms.append((column, room if value else -room))
            limit += room if value else 0.0
        self._model.program.add_row(terms, -math.inf, limit)
