"""How many cores other programs use: what the whole machine works, without this process."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

# Guests are counted in user and nice time already.
_BUSY_FIELDS = ("user", "nice", "system", "irq", "softirq", "steal")
_MIN_S = 1e-9
_STEP_S = 0.01
"""Resolution of the system's count: a program that runs when a step ends is charged all of it."""

QUIET_CORES = 0.1
"""Other programs that use fewer cores than this do not disturb what is measured."""


@dataclass(frozen=True)
class Usage:
    """Seconds at one moment. Any thread may use it."""

    wall: float
    own: float
    """Processor time of this process."""
    machine: float
    """Processor time of everything on this machine."""

    @classmethod
    def now(cls) -> Usage:
        """Read the clocks."""
        times = psutil.cpu_times()
        machine = sum(getattr(times, name, 0.0) for name in _BUSY_FIELDS)
        return cls(time.perf_counter(), time.process_time(), machine)

    def others_since(self, before: Usage) -> float:
        """Return how many cores others used since `before`.

        The system's count may be too high by one step, and by one more for each core that this
        process keeps busy. Less than that counts as none.
        """
        wall_s = max(self.wall - before.wall, _MIN_S)
        own_s = self.own - before.own
        others_s = (self.machine - before.machine) - own_s
        return others_s / wall_s if others_s > _STEP_S * (1 + own_s / wall_s) else 0.0
