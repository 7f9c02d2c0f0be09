"""The option `effort`: what other options are with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from heteroplace.errors import SolverError
from heteroplace.place_options import read_options


@pytest.mark.parametrize(
    ("given", "min_gain_ratio", "time_limit_s", "kernels"),
    [
        ({}, 0.02, 10.0, "auto"),
        ({"effort": "normal"}, 0.02, 10.0, "auto"),
        ({"effort": "quick"}, 0.1, 10.0, "auto"),
        ({"effort": "quick", "min_gain_ratio": 0.02}, 0.02, 10.0, "auto"),
        # No least gain may be asked of such costs.
        ({"effort": "quick", "costs": "estimate"}, 0.02, 10.0, "auto"),
        ({"effort": "best"}, 0.02, 60.0, "best"),
        ({"effort": "best", "time_limit": 5.0, "kernels": "tvm"}, 0.02, 5.0, "tvm"),
        # A table need not know TVM's kernels, and of several items the two are not compared.
        ({"effort": "best", "costs": "costs.json"}, 0.02, 60.0, "auto"),
        ({"effort": "best", "items": 2}, 0.02, 60.0, "auto"),
        ({"effort": "best", "plan_in": "plan.json"}, 0.02, 10.0, "auto"),
    ],
)
def test_effort_stands_for_options_that_are_not_given(
    given: Mapping[str, Any], min_gain_ratio: float, time_limit_s: float, kernels: str
) -> None:
    place, limits = read_options(given)
    assert (limits.min_gain_ratio, limits.time_limit_s) == (min_gain_ratio, time_limit_s)
    assert place.kernels == kernels
    assert place.effort == given.get("effort", "normal")


def test_another_effort_is_refused() -> None:
    with pytest.raises(SolverError, match="effort='fast'; expected one of quick, normal, best"):
        read_options({"effort": "fast"})
