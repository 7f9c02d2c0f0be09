"""Placements of all entries of a workload -> better ones, by annealing over parts of the model.

A move takes a range of layers, the tasks of one kind within a range, or a single layer to another
memory: in all entries, or in one. A second move may make room for it. Times are those of the core's
scheduler for the placement of an entry; memory counts shared weights once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.workload.workload import BoolArray
from heteroplace.solve.workload.workload_state import WorkloadTimes, WorkloadValue

Sites = tuple[IntArray, ...]
"""For each entry [num_tasks], the memory of each task."""

_WARM, _COLD = 1e-3, 1e-5
"""Losses that are taken at first and at last, as parts of the objective."""
_SHARE_OF_SWAPS = 0.5
"""Of moves, those with a second one that makes room."""
_CHECK_EVERY = 16
_MOVES_OF_A_GROUP = 200
"""Small workloads are searched for so many moves for each group of tasks, if time allows."""
_MAX_TRIED = 4096
"""Of at most so many placements all are tried."""


@dataclass(frozen=True)
class Placed:
    """Placements with their value."""

    sites: Sites
    value: WorkloadValue


def best_of_starts(times: WorkloadTimes, starts: Sequence[Sites]) -> Placed:
    """Return the best of some placements."""
    placed = [Placed(sites, times.value(sites)) for sites in starts]
    best = placed[0]
    for each in placed[1:]:
        best = each if each.value.is_better(best.value) else best
    return best


def all_placements(times: WorkloadTimes) -> list[Sites]:
    """Return all placements of a small workload; [] if there are too many."""
    groups, choices = [], []
    for entry, each in enumerate(times.entries):
        for first in np.unique(each.groups, return_index=True)[1].tolist():
            groups.append((entry, each.groups == each.groups[first]))
            choices.append(np.flatnonzero(each.devices[first] != IMPOSSIBLE).tolist())
    if math.prod(map(len, choices)) > _MAX_TRIED:
        return []
    placements = []
    for way in product(*choices):
        sites = tuple(np.zeros(len(each.order), dtype=np.int64) for each in times.entries)
        for (entry, members), memory in zip(groups, way, strict=True):
            sites[entry][members] = memory
        placements.append(sites)
    return placements


def splits(times: WorkloadTimes) -> list[Sites]:
    """Return the placements of all entries in one memory; and where that is too small, those with
    one range of layers in another memory, the shortest that makes all fit.

    Ranges that begin with the first layer are what llama.cpp makes for a number of layers on a GPU.
    """
    starts = whole_placements(times)
    reserve = tensor_bytes(times)
    return [*starts, *(each for sites in starts for each in _windows(times, sites, reserve))]


def _windows(times: WorkloadTimes, sites: Sites, reserve: IntArray) -> list[Sites]:
    """For each first layer the placements with the shortest range in another memory that fit.

    Parameters
    ----------
    reserve
        [num_memories], bytes that are left to tensors.
    """
    ranges: list[Sites] = []
    if times.weight_excess(sites, reserve) == 0:
        return ranges
    for memory in times.memories:
        last = 0
        for first in range(times.num_layers):
            moved = sites
            for end in range(max(last, first + 1), times.num_layers + 1):
                moved = moved_layers(times, sites, first, end, memory)
                if times.weight_excess(moved, reserve) == 0:
                    last = end
                    break
            else:
                break
            ranges.append(moved)
    return ranges


def moved_layers(times: WorkloadTimes, sites: Sites, first: int, end: int, memory: int) -> Sites:
    """Return the placements with the layers from `first` to before `end` in a memory."""
    return tuple(
        times.moved(entry, own, (layers >= first) & (layers < end), memory)
        for entry, (own, layers) in enumerate(zip(sites, times.layers, strict=True))
    )


def whole_placements(times: WorkloadTimes) -> list[Sites]:
    """Return the placements of all entries in one memory, for each memory."""
    return [_all_in(times, memory) for memory in times.memories]


def tensor_bytes(times: WorkloadTimes) -> IntArray:
    """Return what tensors of all entries take in each memory if all tasks are there, in bytes."""
    most: IntArray = np.max([times.values(sites) for sites in whole_placements(times)], axis=0)
    return most


def _all_in(times: WorkloadTimes, memory: int) -> Sites:
    """All tasks in a memory; those that cannot be there, where they run soonest."""
    sites = []
    for entry in times.entries:
        run_ns = entry.entry.roomy.run_ns
        fastest = np.where(run_ns == IMPOSSIBLE, np.iinfo(np.int64).max, run_ns).argmin(axis=1)
        elsewhere = entry.entry.device_memory[fastest]
        sites.append(np.where(entry.devices[:, memory] == IMPOSSIBLE, elsewhere, memory))
    return tuple(sites)


class WorkloadSearch:
    """An annealing over the placements of a workload."""

    def __init__(self, times: WorkloadTimes, start: Placed, seed: int, penalty: float) -> None:
        """Begin at placements, which need not fit.

        Parameters
        ----------
        penalty
            What a byte of excess counts, in ns of the objective.
        """
        self._times = times
        self._now = self.best = start
        self._penalty = penalty
        self._random = np.random.default_rng(seed)
        self._kinds = [
            _kinds(identity.work for identity in each.entry.problem.graph.identities)
            for each in times.entries
        ]

    def run(self, deadline: Deadline, moves: int | None) -> Placed:
        """Return the best placements after so many moves, or at the deadline.

        Parameters
        ----------
        moves
            None: as many as the size of the workload asks for.
        """
        if len(self._times.memories) < 2:
            return self.best
        groups = sum(len(np.unique(each.groups)) for each in self._times.entries)
        most = _MOVES_OF_A_GROUP * groups if moves is None else moves
        begin_s, progress = deadline.left_s(), 0.0
        for number in range(most):
            if number % _CHECK_EVERY == 0:
                left_s = deadline.left_s()
                if left_s <= 0:
                    break
                of_time = 1 - left_s / begin_s if moves is None else 0.0
                progress = max(number / most, of_time)
            self._step(progress)
        return self.best

    def _step(self, progress: float) -> None:
        sites = self._move(self._now.sites)
        if self._random.random() < _SHARE_OF_SWAPS:
            sites = self._move(sites)
        value = self._times.value(sites)
        loss = self._cost(value) - self._cost(self._now.value)
        scale = _WARM * (_COLD / _WARM) ** progress * max(1, self._now.value.objective_ns)
        if loss <= 0 or self._random.random() < math.exp(-min(loss / scale, 700.0)):
            self._now = Placed(sites, value)
            if value.is_better(self.best.value):
                self.best = self._now

    def _cost(self, value: WorkloadValue) -> float:
        return value.objective_ns + self._penalty * value.excess_bytes

    def _move(self, sites: Sites) -> Sites:
        """Take a part of the model to another memory."""
        times, draw = self._times, self._random
        memory = int(draw.choice(times.memories))
        first = int(draw.integers(times.num_layers))
        length = int(2 ** draw.uniform(0, math.log2(times.num_layers + 1)))
        way = draw.random()
        chosen = range(len(sites)) if draw.random() < 0.7 else [int(draw.integers(len(sites)))]
        result = list(sites)
        for entry in chosen:
            own = times.layers[entry]
            moves = (own >= first) & (own < first + length)
            if way < 0.3:
                moves = self._of_a_kind(entry, moves)
            elif way < 0.6:
                moves = own == first
            result[entry] = times.moved(entry, sites[entry], moves, memory)
        return tuple(result)

    def _of_a_kind(self, entry: int, moves: BoolArray) -> BoolArray:
        """Of some tasks those that compute the same as one of them."""
        kinds = self._kinds[entry]
        inside = np.flatnonzero(moves)
        if not len(inside):
            return moves
        kind = kinds[self._random.choice(inside)]
        both: BoolArray = moves & (kinds == kind)
        return both


def _kinds(works: Iterable[object]) -> IntArray:
    """Number tasks by what they compute."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(each, len(numbers)) for each in works], dtype=np.int64)
