"""Damaged files of every format: a typed error or a right result, no crash, no hang.

Every run takes some cases, other ones for each commit; `make test-all` takes them all.
"""

from __future__ import annotations

import pytest

from tests.fuzz.child import REFUSED, run_cases

NUM_JSON, NUM_JSON_ALL = 350, 5000


def check(kind: str, seed: str, first: int, last: int, least_right: float) -> None:
    """Run cases, of which `least_right` of all (a ratio) must be read, and as many refused."""
    outcomes, faults = run_cases(kind, seed, first, last)
    assert not faults, f"{len(faults)} of {last - first}:\n" + "\n\n".join(faults[:5])
    num_right = sum(count for outcome, count in outcomes.items() if outcome != REFUSED)
    assert num_right + outcomes[REFUSED] == last - first
    assert min(num_right, outcomes[REFUSED]) >= least_right * (last - first), outcomes


@pytest.mark.timeout(300)
def test_damaged_json_files(pytestconfig: pytest.Config) -> None:
    check("json_files", pytestconfig.option.hypothesis_seed, 0, NUM_JSON, 0.04)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_all_damaged_json_files() -> None:
    check("json_files", "all", 0, NUM_JSON_ALL, 0.05)
