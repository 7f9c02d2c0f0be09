"""Damaged files of every format: a typed error or a right result, no crash, no hang.

Every run takes some cases, other ones for each commit; `make test-all` takes them all.
"""

from __future__ import annotations

import pytest

from tests.fuzz.child import REFUSED, run_cases

NUM_CASES = {
    "json_files": 5000,
    "onnx_files": 2000,
    "store_files": 300,
    "compiled_files": 10_000,
    "source_files": 2000,
}
LEAST = {
    "json_files": 0.05,
    "onnx_files": 0.08,
    "store_files": 0.1,
    "compiled_files": 0.03,
    "source_files": 0.02,
}
"""The share of the cases that must at least be read, and that must at least be refused."""
KINDS = [
    "json_files",
    pytest.param("onnx_files", marks=pytest.mark.relay),
    "store_files",
    pytest.param("compiled_files", marks=pytest.mark.relay),
    pytest.param("source_files", marks=pytest.mark.relay),
]
_SHARES = {
    "json_files": 10,
    "onnx_files": 10,
    "store_files": 10,
    "compiled_files": 40,
    "source_files": 20,
}
"""Of the cases, one in so many is in every run."""


def check(kind: str, seed: str, num_cases: int) -> None:
    """Run cases; of those in a run of few, only one must be read, and one refused."""
    outcomes, faults = run_cases(kind, seed, 0, num_cases)
    assert not faults, f"{len(faults)} of {num_cases}:\n" + "\n\n".join(faults[:5])
    num_right = sum(count for outcome, count in outcomes.items() if outcome != REFUSED)
    assert num_right + outcomes[REFUSED] == num_cases
    least = LEAST[kind] * num_cases if num_cases == NUM_CASES[kind] else 1
    assert min(num_right, outcomes[REFUSED]) >= least, outcomes


@pytest.mark.costly(18)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(pytestconfig: pytest.Config, kind: str) -> None:
    check(kind, str(pytestconfig.option.hypothesis_seed), NUM_CASES[kind] // _SHARES[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all_damaged_files(kind: str) -> None:
    check(kind, "all", NUM_CASES[kind])


def test_a_crash_and_a_hang_are_seen() -> None:
    outcomes, faults = run_cases("self_check", "", 0, 6)
    assert outcomes == {"right": 2, REFUSED: 1}
    assert [fault.split(":")[0] for fault in faults] == ["case 1", "case 3", "case 4"]
    assert "ended with -11" in faults[0]
    assert "KeyError" in faults[1]
    assert "Timeout" in faults[2]
