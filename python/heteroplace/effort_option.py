"""The option `effort`: it chooses the values of other options, where they are not given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NORMAL = "normal"
EFFORTS = ("quick", NORMAL, "best")
"""Values of the option `effort`."""

EFFORT_HELP = (
    "quick: several devices only where they take a tenth less time, so most searches end at once; "
    "best: up to a minute for the plan, and TVM's kernels are measured beside ours"
)
QUICK_GAIN_RATIO = 0.1
"""Least gain by several devices for which `quick` looks, and measures how they slow each other."""
BEST_TIME_LIMIT_S = 60.0
"""Most time for the solve of `best`."""

_MEASURED = ("measure", "isolated")
"""Costs of which a least gain may be asked, and which know every kernel."""


def with_effort(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords with the options that `effort` stands for; those that are given hold.

    No effort changes a saved plan.

    >>> with_effort({"effort": "quick"})
    {'min_gain_ratio': 0.1, 'effort': 'quick'}
    >>> with_effort({"effort": "best", "kernels": "tvm"})
    {'time_limit': 60.0, 'kernels': 'tvm', 'effort': 'best'}
    """
    if given.get("plan_in") is not None:
        return dict(given)
    effort, is_measured = given.get("effort"), given.get("costs", _MEASURED[0]) in _MEASURED
    chosen: dict[str, Any] = {}
    if effort == "quick" and is_measured:
        chosen["min_gain_ratio"] = QUICK_GAIN_RATIO
    if effort == "best":
        chosen["time_limit"] = BEST_TIME_LIMIT_S
        if is_measured and given.get("items", 1) == 1:
            chosen["kernels"] = "best"
    return {**chosen, **given}
