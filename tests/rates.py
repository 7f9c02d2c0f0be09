"""How often something holds among random cases, judged so that luck does not fail a test."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import binomtest

_LEAST_PROBABILITY = 1e-5


def assert_rate(holds: Sequence[bool], rate: float) -> None:
    """Fail if so few of the cases hold that a rate of `rate` would hardly ever show so few."""
    assert holds
    found = binomtest(sum(holds), len(holds), rate, alternative="less").pvalue
    assert found >= _LEAST_PROBABILITY, f"{sum(holds)} of {len(holds)} hold, expected {rate:.0%}"
