"""The Lagrangian bound of the core on the makespan; see `src/bounds/lagrangian.h`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import heteroplace._core as _core
from heteroplace.native.core_problem import NativeProblem


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


def lagrangian_bound(
    native: NativeProblem,
    prices: Sequence[float] = (),
    *,
    rounds: int = 12,
    iterations: int = 120,
    time_limit_s: float = 10.0,
    max_work: int = 0,
    target_ns: int = 0,
    threads: int = 1,
    num_samples: int = 0,
) -> LagrangianBound:
    """Return the largest bound found by raising memory prices.

    Parameters
    ----------
    prices
        Prices to begin with, [num_memories]; empty: zeros.
    rounds
        Steps of the prices; the first is at `prices` themselves.
    iterations
        Subgradient steps for each pair of devices of each distinct module.
    time_limit_s
        A bound that ends by it is not reproducible.
    max_work
        How often tasks are looked at, some 50 million times a second; 0: no limit. Unlike the time
        it gives the same bound on every machine.
    target_ns
        A known makespan, which sets the length of the steps; 0: none is known.
    num_samples
        Placements to return.

    Raises
    ------
    ValueError
        The number of prices is not that of the memories, or one is negative; or there are less
        than one round or iteration.
    """
    if rounds < 1 or iterations < 1:
        raise ValueError(f"rounds and iterations must be >= 1, got {rounds} and {iterations}")
    num_memories = len(native.cluster.memories)
    if len(prices) not in (0, num_memories) or any(price < 0 for price in prices):
        raise ValueError(
            f"prices must be {num_memories} numbers >= 0, one per memory, or empty; got "
            f"{list(prices)}"
        )
    bound_ns, found, samples = _core.lagrangian_bound(
        native.core,
        list(prices),
        rounds=rounds,
        iterations=iterations,
        time_limit_s=time_limit_s,
        max_work=max_work,
        target_ns=target_ns,
        threads=threads,
        num_samples=num_samples,
    )
    return LagrangianBound(bound_ns, tuple(found), tuple(tuple(row) for row in samples))
