"""ONNX's own test suite: none of its cases is wrong, and none takes the process along."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import onnx_models as om
import pytest

from heteroplace.bench.conformance.cases import Case, load_cases
from heteroplace.bench.conformance.command import table
from heteroplace.bench.conformance.page import page
from heteroplace.bench.conformance.pool import Row, run_cases

pytestmark = pytest.mark.relay
_LIMIT_S = 300.0


def case(name: str, op: str, expected: object, seed: int = 0) -> Case:
    model = om.make_model([om.node(op, "x", "y")], {"x": [3]}, ["y"])
    x = np.random.default_rng(seed).standard_normal(3).astype(np.float32)
    wanted = np.abs(x) if expected is None else expected
    return Case(name, op, model, [([x], [wanted])], 1e-3, 1e-7)


class Death:
    """What ends the process that reads it."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (3,)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    cases = [
        case("right", "Abs", None),
        case("deadly", "Abs", Death()),
        case("false", "Abs", np.zeros(3, np.float32)),
        case("random", "Bernoulli", None),
        case("other type", "Abs", np.zeros(3)),
    ]
    return run_cases(cases, num_workers=1, limit_s=_LIMIT_S)


def test_each_case_has_its_row_even_where_a_process_dies(rows: list[Row]) -> None:
    results = {row["case"]: row["result"] for row in rows}
    assert results == {
        "right": "equal",
        "deadly": "crash",
        "false": "wrong",
        "random": "refused",
        "other type": "wrong",
    }


def test_reasons_say_why(rows: list[Row]) -> None:
    reasons = {row["case"]: str(row["reason"]) for row in rows}
    assert "died with code 3" in reasons["deadly"]
    assert "instead of 0.0" in reasons["false"]
    assert "Bernoulli" in reasons["random"] and "draws random numbers" in reasons["random"]
    assert reasons["other type"] == "output 0 is float32[3] instead of float64[3]"


def test_table_and_page_count_every_case(rows: list[Row]) -> None:
    assert "equal: 1, refused: 1, wrong: 2, crash: 1 of 5 cases (20.0 % equal)" in table(rows)
    text = page(rows)
    assert "5 cases: 1 equal, 1 refused, 2 wrong, 1 crash (20.0 % equal)." in text
    assert "| Abs | 4 | 1 |" in text


def commit_seed() -> int:
    """The cases of a run are drawn by the commit that is tested."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout.strip()[:8], 16)


def assert_right_or_refused(rows: list[Row]) -> None:
    faults = [row for row in rows if row["result"] in ("wrong", "crash")]
    assert not faults, "\n".join(f"{row['case']}: {row['reason']}" for row in faults)


def test_drawn_cases_are_right_or_refused() -> None:
    cases = load_cases(share=0.005, seed=commit_seed())
    assert_right_or_refused(run_cases(cases, num_workers=1, limit_s=_LIMIT_S))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_no_case_of_the_suite_is_wrong_and_most_are_equal() -> None:
    rows = run_cases(load_cases(), num_workers=2, limit_s=_LIMIT_S)
    assert_right_or_refused(rows)
    assert Counter(row["result"] for row in rows)["equal"] > 0.75 * len(rows)
