"""When a solve must have ended: one moment that all its phases look at.

A phase that is given seconds begins to count when it begins; what lies between two such phases
(models that are built, plans that are simulated) is then nobody's. A deadline is handed down.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass


class TimeUpError(Exception):
    """The deadline has passed before there was anything to return; never leaves a solver."""


@dataclass(frozen=True)
class Deadline:
    """A moment on the clock of `time.perf_counter`. Any thread."""

    at_s: float

    @classmethod
    def after(cls, seconds: float, begin_s: float | None = None) -> Deadline:
        """Return the moment so many seconds after `begin_s`; None: after now."""
        return cls((time.perf_counter() if begin_s is None else begin_s) + seconds)

    def within(self, seconds: float) -> Deadline:
        """Return the moment so many seconds from now, but not a later one than this."""
        return Deadline(min(self.at_s, time.perf_counter() + seconds))

    def part(self, share: float, work: float | None) -> Deadline:
        """Return the moment when this share of what is left is used up.

        Parameters
        ----------
        work
            A budget that ends by itself, in iterations or the like; None: there is none. With one
            the clock may cut nothing short but at the very end, or the result is not reproducible.
        """
        return self.within(share * self.left_s()) if work is None else self

    def left_s(self) -> float:
        """Return the seconds that are left; 0 from then on."""
        return max(0.0, self.at_s - time.perf_counter())

    def is_over(self) -> bool:
        """Say whether it has passed."""
        return time.perf_counter() >= self.at_s

    def check(self) -> None:
        """Raise TimeUpError if it has passed."""
        if self.is_over():
            raise TimeUpError

    def earlier(self, seconds: float) -> Deadline:
        """Return the moment so many seconds before it."""
        return Deadline(self.at_s - seconds)


NEVER = Deadline(math.inf)
"""For work that only the sizes of its input limit."""
