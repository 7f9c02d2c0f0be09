"""The Lagrangian bound of the core on the makespan; see `src/bounds/lagrangian.h`."""

from __future__ import annotations

from dataclasses import dataclass

import heteroplace._core as _core


@dataclass(frozen=True)
class LagrangianBound:
    """A proven bound, and the memories' Lagrange multipliers (prices) that it was found at."""

    bound_ns: int
    """No plan that fits the memories has a shorter makespan."""
    prices: tuple[float, ...]
    """For each memory what a byte costs, in ns; >= 0. Good prices to begin the next bound with."""
    samples: tuple[tuple[int, ...], ...]
    """Placements, a device per task each: what the relaxed plans of the bound look like. They may
    lack memory and tear colocation groups."""


lagrangian_bound = _core.lagrangian_bound
