"""A simulated plan -> neighbourhoods to solve again: at critical steps, first where units idle."""

from __future__ import annotations

import random
from bisect import bisect_left

from heteroplace.solve.lns.fixed_schedule import SimulatedPlan
from heteroplace.solve.lns.neighbourhood import Neighbourhood
from heteroplace.solve.lns.neighbourhood_model import FS_PER_NS

_NUM_DRAWS = 3
"""Of so many neighbourhoods the one is taken in which units idle most."""
_PRICED_SHARE = 0.5
"""Share of the neighbourhoods at prices of memory, if a memory is nearly full."""
_PRICE_FACTORS = (0.5, 0.7, 1.0, 1.4)
"""Of the value of a byte."""
_FULL_PART = 0.02
"""A memory is nearly full if less of it is left."""
_PAIR_SHARE = 0.4
"""Share of the neighbourhoods in which only the tasks of two devices may move."""
_GREEDY_SHARE = 0.5
"""Share of the neighbourhoods that may use all memory that is left."""
_PAIR_LENGTH = 3
"""Such a neighbourhood has at most so many times as many tasks as may move."""


class Chooser:
    """Draws neighbourhoods of one schedule."""

    def __init__(
        self, schedule: SimulatedPlan, rng: random.Random, byte_values_fs: tuple[int, ...]
    ) -> None:
        """Begin; `byte_values_fs` is for each memory what a byte is worth."""
        self._schedule = schedule
        self._rng = rng
        self._all = tuple(range(schedule.lists.num_devices))
        limits, used = schedule.lists.limits, schedule.used_bytes
        self._values_fs = [
            value if limit - taken < _FULL_PART * limit else 0
            for value, limit, taken in zip(byte_values_fs, limits, used, strict=True)
        ]
        self._used = sorted({device for device in schedule.device})

    def draw(self, size: int, taken: list[Neighbourhood]) -> Neighbourhood | None:
        """Return one with about `size` tasks that may move, apart from those of `taken`.

        None: a draw that overlaps one of them.
        """
        drawn = [self._one(size) for _ in range(_NUM_DRAWS)]
        best = max(drawn, key=self._idle_ratio)
        overlaps = any(best.first < other.last and other.first < best.last for other in taken)
        return None if overlaps else best

    def _one(self, size: int) -> Neighbourhood:
        schedule, rng = self._schedule, self._rng
        runs = schedule.run_positions
        centre = bisect_left(runs, rng.choice(schedule.critical))
        if len(self._all) > 2 and rng.random() < _PAIR_SHARE:
            return self._pair(size, min(centre, len(runs) - 1))
        begin = max(0, min(centre - rng.randrange(size), len(runs) - size))
        return self._between(begin, begin + size, self._all)

    def _pair(self, size: int, centre: int) -> Neighbourhood:
        """Grow to both sides until enough tasks run on two devices."""
        schedule, rng = self._schedule, self._rng
        runs = schedule.run_positions
        first = schedule.where[runs[centre]]
        second = rng.choice([device for device in self._all if device != first])
        pair = (min(first, second), max(first, second))
        begin = end = centre
        count = 0
        while count < size and end - begin < _PAIR_LENGTH * size:
            if begin == 0 and end == len(runs):
                break
            if end == len(runs) or (begin > 0 and centre - begin < end - centre):
                begin -= 1
                count += schedule.where[runs[begin]] in pair
            else:
                count += schedule.where[runs[end]] in pair
                end += 1
        return self._between(begin, end, pair)

    def _between(self, begin: int, end: int, devices: tuple[int, ...]) -> Neighbourhood:
        runs = self._schedule.run_positions
        first = runs[begin] if begin else 0
        last = runs[end] if end < len(runs) else len(self._schedule)
        return Neighbourhood(
            first, last, devices, self._rng.random() < _GREEDY_SHARE, self._draw_prices()
        )

    def _draw_prices(self) -> tuple[int, ...]:
        if not any(self._values_fs) or self._rng.random() >= _PRICED_SHARE:
            return ()
        return tuple(round(value * self._rng.choice(_PRICE_FACTORS)) for value in self._values_fs)

    def _idle_ratio(self, neighbourhood: Neighbourhood) -> float:
        """Share of the time of the used devices in which they do not run."""
        schedule = self._schedule
        busy_ns, end_ns = 0, 0
        for position in range(neighbourhood.first, neighbourhood.last):
            end_ns = max(end_ns, schedule.finish_ns[position])
            if schedule.is_run[position]:
                busy_ns += schedule.finish_ns[position] - schedule.start_ns[position]
        span_ns = end_ns - schedule.start_ns[neighbourhood.first]
        return 1 - busy_ns / (span_ns * len(self._used)) if span_ns else 0.0


def whole(schedule: SimulatedPlan) -> Neighbourhood:
    """Return the neighbourhood that is all of a schedule, with nothing kept."""
    return Neighbourhood(0, len(schedule), tuple(range(schedule.lists.num_devices)))


def byte_values_fs(schedule: SimulatedPlan) -> tuple[int, ...]:
    """For each memory what a byte of weights there saves in run time on average, in fs."""
    lists = schedule.lists
    saved_ns, num_bytes = [0] * lists.num_memories, [0] * lists.num_memories
    for task, device in enumerate(schedule.device):
        memory = lists.memory_of[device]
        others = [
            lists.run_ns[task][other]
            for other in lists.allowed(task)
            if lists.memory_of[other] != memory
        ]
        saved_ns[memory] += max(0, min(others, default=0) - lists.run_ns[task][device])
        num_bytes[memory] += lists.weight_bytes[task]
    return tuple(
        FS_PER_NS * ns // most if most else 0 for ns, most in zip(saved_ns, num_bytes, strict=True)
    )
