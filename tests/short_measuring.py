"""Measuring in few runs and solving in short, for tests of commands whose figures mean nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import pytest

from heteroplace.solve.deadline import Deadline

SHORT_PEAKS = {"_STEPS": 1 << 16, "_COPY_BYTES": 1 << 24, "_REPEATS": 1}
"""Of `machine_peaks`: what a kernel does, and how often it runs."""

SHORT = {
    "heteroplace.measure.batches": {"ROUND_NS": 1},
    "heteroplace.measure.collective_times": {"_NUM_RUNS": 3, "_NUM_WARM_RUNS": 1},
    "heteroplace.measure.machine_peaks": SHORT_PEAKS,
    "heteroplace.measure.measured_interference": {"_ROUND_NS": 1},
    "heteroplace.measure.sequential": {"ROUND_NS": 1},
    "heteroplace.parts.parallel.sharding.in_plan": {"_ROUND_NS": 1},
    "heteroplace.parts.parallel.sharding.plan_trials": {"_TURN_NS": 1},
}
"""Constants of modules, most of them lengths of rounds in ns, of which a few runs are taken
anyway."""

_SOLVE_S = 0.5
"""The longest time of a solve, also where a command says more or nothing."""

_CACHE_BYTES = 1 << 22
"""Of the last cache, which traffic between runs has to overflow."""


@contextmanager
def short_measuring() -> Iterator[None]:
    """Take as few runs as each measurement allows, and little traffic between them; solve in
    short."""
    with pytest.MonkeyPatch.context() as patch:
        for module, constants in SHORT.items():
            for name, value in constants.items():
                patch.setattr(import_module(module), name, value)
        traffic = import_module("heteroplace.measure.transfers.traffic")
        patch.setattr(traffic, "last_cache_bytes", lambda: _CACHE_BYTES)
        after = Deadline.after
        patch.setattr(Deadline, "after", lambda limit_s, *now: after(min(limit_s, _SOLVE_S), *now))
        yield
