"""Costs of tasks + groups of them -> costs of the groups: sums over members, column by column.

A table has tasks x devices x batches cells: they are added up as arrays, and an object is made for
each cell of a group only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from heteroplace.model.cost import (
    MAX_NS,
    NO_TIME,
    SOURCES_WITH_TIME,
    UNKNOWN,
    Cost,
    CostTable,
)
from heteroplace.native.core_graph import BoolArray, IntArray

Values = npt.NDArray[Any]
"""[num_tasks, num_devices] or [num_groups, num_devices]."""


class GroupCosts:
    """What groups of tasks take on each device, in one batch size."""

    def __init__(self, costs: CostTable, members: Sequence[Sequence[int]], batch: int) -> None:
        """Add up the columns of a table.

        Parameters
        ----------
        members
            For each group its tasks, at least one.

        Raises
        ------
        MissingCostError
            A cost is unknown, of a group that else could be there.
        """
        self._costs, self._members, self._batch = costs, members, batch
        position = costs.batches.index(batch)
        shape = (costs.num_tasks, costs.num_devices)
        self._ns = np.array(costs.ns[position], dtype=np.int64).reshape(shape)
        self._order = np.array([task for group in members for task in group], dtype=np.int64)
        sizes = np.array([len(group) for group in members], dtype=np.int64)
        self._starts = np.cumsum(sizes) - sizes
        self._is_unsupported = self._any(self._ns == NO_TIME)
        self._refuse_unknown()
        times = np.maximum(self._ns, 0)
        if int(times.max(initial=0)) * int(sizes.max(initial=0)) > MAX_NS:
            times = times.astype(object)  # Sums of them may be too long for a table, which says so.
        self._total_ns = self._reduce(np.add, times)
        self._add_details(np.array(costs.detail_ids[position], dtype=np.int64).reshape(shape))

    def is_possible(self) -> BoolArray:
        """Return for each group whether some device can run all of it."""
        possible: BoolArray = np.logical_not(self._is_unsupported.all(axis=1))
        return possible

    def why_not(self, group: int, device: int) -> str:
        """Return why a group cannot be on a device."""
        tasks = self._members[group]
        first = next(task for task in tasks if self._ns[task, device] == NO_TIME)
        return f"task {self._costs.tasks[first].name!r} is unsupported on device {device}"

    def cost(self, group: int, device: int) -> Cost:
        """Return the cost of a group: as trustworthy as its least certain member."""
        if self._is_unsupported[group, device]:
            return Cost.unsupported(self.why_not(group, device))
        total_ns = int(self._total_ns[group, device])
        reason = f"sum over {len(self._members[group])} tasks"
        source = SOURCES_WITH_TIME[int(self._rank[group, device])]
        if source == "measured":
            return Cost.measured(total_ns, int(self._spread_ns[group, device]), reason)
        error = float(self._error_ns[group, device])
        if np.isnan(error) or not total_ns:
            return Cost(total_ns, source, 0, reason, None)
        return Cost(total_ns, source, 0, reason, error / total_ns)

    def _add_details(self, ids: IntArray) -> None:
        details = self._costs.details
        ranks = [
            SOURCES_WITH_TIME.index(one.source) if one.source in SOURCES_WITH_TIME else 0
            for one in details
        ]
        errors = np.array([np.nan if one.error is None else one.error for one in details])
        spreads = np.array([one.spread_ns for one in details], dtype=np.int64)
        self._rank = self._reduce(np.maximum, np.array(ranks, dtype=np.int8)[ids])
        self._spread_ns = self._reduce(np.add, spreads[ids])
        # Members without a time say nothing of the error.
        parts = np.where(self._ns > 0, errors[ids] * self._ns, 0.0)
        self._error_ns = self._reduce(np.add, parts)

    def _refuse_unknown(self) -> None:
        """Raise for the first unknown cost, by group, then device."""
        is_unknown = self._any(self._ns == UNKNOWN) & ~self._is_unsupported
        for group, device in np.argwhere(is_unknown)[:1].tolist():
            for task in self._members[group]:
                self._costs.run_ns(task, device, self._batch)

    def _any(self, values: BoolArray) -> BoolArray:
        is_any: BoolArray = self._reduce(np.logical_or, values)
        return is_any

    def _reduce(self, operation: np.ufunc, values: Values) -> Values:
        """Put together the rows of the members of each group."""
        if not len(self._order):
            return values
        reduced: Values = operation.reduceat(values[self._order], self._starts, axis=0)
        return reduced
