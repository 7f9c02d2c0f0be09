"""Which part of its time each phase of a solve of several items takes (`batched_solver.py`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shares:
    """Of the time that is left when a phase begins."""

    bound: float
    """The quick bound at the beginning."""
    pipeline: float
    """Items one behind the other, in equal batches."""
    chain: float
    """Pairs of the chain of modules."""
    annealing: float
    """The whole; what then is left is for bounds."""


DIVI_SHARES = Shares(bound=0.1, pipeline=0.0, chain=0.6, annealing=0.75)
AUTO_SHARES = Shares(bound=0.02, pipeline=0.12, chain=0.65, annealing=0.9)
"""Pipelines take what `split` has for bounds: modules and annealing have as long as there."""
