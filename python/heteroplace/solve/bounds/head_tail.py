"""Head-tail bound: tasks with a head >= h and a tail >= t need h + load + t.

The energetic form of the bound of DiviML (section IV-E, DOI 10.48550/arXiv.2308.00127), with
thresholds on longest paths instead of modules.
"""

from __future__ import annotations

import numpy as np

from heteroplace.native.core_arrays import IntArray
from heteroplace.solve.bounds.load import Loads
from heteroplace.solve.bounds.paths import Paths

_STEPS = 8
"""Thresholds tried for heads and for tails."""


def head_tail_bound(paths: Paths, loads: Loads) -> int:
    """Return the best over some pairs of thresholds, in ns. O(num_tasks) for each pair."""
    best = 0
    for after in _thresholds(paths.head_ns):
        for before in _thresholds(paths.tail_ns):
            tasks = np.flatnonzero((paths.head_ns >= after) & (paths.tail_ns >= before))
            if len(tasks):
                best = max(best, after + before + loads.bound_ns(tasks))
    return best


def _thresholds(times: IntArray) -> list[int]:
    """A few of the values, from the least to the largest."""
    values = np.unique(times)
    picks = np.linspace(0, len(values) - 1, min(_STEPS, len(values))).astype(int)
    return [int(values[pick]) for pick in picks]
