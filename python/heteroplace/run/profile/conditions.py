"""The state of the machine while something is measured."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone

import psutil
import tvm

from heteroplace.costs.measurement import Conditions


@dataclass(frozen=True)
class Watch:
    """Notes how busy the machine is from its making to `conditions`. Any thread may use it."""

    _wall_s: float
    _machine_s: float
    _own_s: float

    @classmethod
    def start(cls) -> Watch:
        """Begin to watch."""
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        # Guests are counted in user time already.
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        return cls(time.perf_counter(), sum(times) - idle - guests, time.process_time())

    def conditions(self, hop_ns: int | None) -> Conditions:
        """Return what was seen so far, with the date of now.

        Parameters
        ----------
        hop_ns
            Time of a cache line between two cores, if it is known.
        """
        now = Watch.start()
        others_s = (now._machine_s - self._machine_s) - (now._own_s - self._own_s)
        # The system counts in steps of 10 ms, so that a short watch can see less than nothing.
        others = max(0.0, others_s / max(now._wall_s - self._wall_s, 1e-9))
        date = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return Conditions(date, tvm.__version__, hop_ns, round(others, 3))
