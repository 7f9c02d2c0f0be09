"""ONNX's own test suite: none of its cases is wrong, and none takes the process along."""

from __future__ import annotations

import os
import time
from collections import Counter
from functools import cache

import numpy as np
import onnx
import onnx_models as om
import pytest

from benchmarks.conformance.cases import Case, draw_cases, load_cases
from benchmarks.conformance.command import stamp_now, table
from benchmarks.conformance.page import page
from benchmarks.conformance.pool import Row, run_cases
from benchmarks.tables.store import code_stamp

pytestmark = pytest.mark.relay
_LIMIT_S = 300.0
_NUM_PARTS = 6
"""Parts of the cases that CI chooses from, one of each op. One part is in every run; `make
test-all` takes all cases."""


def case(name: str, op: str, expected: object, seed: int = 0, num_nodes: int = 1) -> Case:
    nodes = [om.node(op, "x", "y"), *(om.node(op, "x", f"y{i}") for i in range(1, num_nodes))]
    model = om.make_model(nodes, {"x": [3]}, ["y"])
    x = np.random.default_rng(seed).standard_normal(3).astype(np.float32)
    wanted = np.abs(x) if expected is None else expected
    return Case(name, op, model, [([x], [wanted])], 1e-3, 1e-7)


def near_case() -> Case:
    """Two outputs, the larger of which may differ by what the smaller must not."""
    nodes = [om.node("Abs", "x", "large"), om.node("Abs", "z", "small")]
    model = om.make_model(nodes, {"x": [2], "z": [2]}, ["large", "small"])
    large, small = np.array([1e6, 1e-3], np.float32), np.array([1e-3, 1e-6], np.float32)
    near = [large + np.float32(0.5), small]
    far = [large, small + np.float32(0.5)]
    runs = [([large, small], outputs) for outputs in (near, far)]
    return Case("near and far", "Abs", model, runs, 0.0, 0.0, of_largest=1e-5)


class Sleep:
    """What keeps the process that reads it."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return time.sleep, (600,)


class Death:
    """What ends the process that reads it."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (3,)


@pytest.fixture(scope="module")
def all_rows() -> list[Row]:
    """Of cases of our own, then of the first part, in one process where none dies."""
    cases = [*own_cases(), *part_of_suite(0)]
    return list(run_cases(cases, num_workers=1, limit_s=_LIMIT_S))


@pytest.fixture
def rows(all_rows: list[Row]) -> list[Row]:
    return all_rows[: len(own_cases())]


def own_cases() -> list[Case]:
    return [
        case("right", "Abs", None),
        case("deadly", "Abs", Death()),
        case("false", "Abs", np.zeros(3, np.float32)),
        case("random", "Bernoulli", None),
        case("other type", "Abs", np.zeros(3)),
        near_case(),
    ]


def test_each_case_has_its_row_even_where_a_process_dies(rows: list[Row]) -> None:
    results = {row["case"]: row["result"] for row in rows}
    assert results == {
        "right": "equal",
        "deadly": "crash",
        "false": "wrong",
        "random": "refused",
        "other type": "wrong",
        "near and far": "wrong",
    }


def test_a_case_past_the_limit_is_too_slow() -> None:
    (row,) = run_cases([case("endless", "Abs", Sleep())], num_workers=1, limit_s=0.5)
    assert (row["result"], row["reason"]) == ("too slow", "ran for more than 0.5 s")


def test_reasons_say_why(rows: list[Row]) -> None:
    reasons = {row["case"]: str(row["reason"]) for row in rows}
    assert "died with code 3" in reasons["deadly"]
    assert "instead of 0.0" in reasons["false"]
    assert "Bernoulli" in reasons["random"] and "draws random numbers" in reasons["random"]
    assert reasons["other type"] == "output 0 is float32[3] instead of float64[3]"
    assert reasons["near and far"].startswith("output 1: ")


def test_table_and_page_count_every_case(rows: list[Row]) -> None:
    counts = "equal: 1, refused: 1, wrong: 3, crash: 1, too slow: 0"
    assert f"{counts} of 6 cases (16.7 % equal)" in table(rows)
    text = page(rows, stamp_now())
    assert "6 cases: 1 equal, 1 refused, 3 wrong, 1 crash, 0 too slow (16.7 % equal)." in text
    assert "| Abs | 5 | 1 |" in text
    assert f"Of commit {code_stamp()} with the suite of onnx {onnx.__version__}, 20" in text


@cache
def suite() -> tuple[Case, ...]:
    """All cases of the standard."""
    return tuple(load_cases())


def part_of_suite(part: int) -> list[Case]:
    """The smallest case of each op, for one op of so many: always the same ones."""
    smallest: dict[str, Case] = {}
    for case in sorted(suite(), key=lambda case: (len(case.model.graph.node), case.name)):
        smallest.setdefault(case.op, case)
    return [smallest[op] for op in sorted(smallest)[part::_NUM_PARTS]]


def assert_right_or_refused(rows: list[Row]) -> None:
    faults = [row for row in rows if row["result"] in ("wrong", "crash", "too slow")]
    assert not faults, "\n".join(f"{row['case']}: {row['reason']}" for row in faults)


def test_a_part_of_the_ops_is_right_or_refused(all_rows: list[Row]) -> None:
    rows = all_rows[len(own_cases()) :]
    assert len(rows) > 25
    assert_right_or_refused(rows)


@pytest.mark.costly(40)
@pytest.mark.parametrize("part", range(1, _NUM_PARTS))
def test_the_other_ops_are_right_or_refused(part: int) -> None:
    rows = list(run_cases(part_of_suite(part), num_workers=1, limit_s=_LIMIT_S))
    assert len(rows) > 25
    assert_right_or_refused(rows)


def test_small_cases_are_drawn_more_often_and_the_same_by_each_seed() -> None:
    small = [case(f"small {i}", "Abs", None) for i in range(50)]
    large = [case(f"large {i}_expanded", "Abs", None, num_nodes=20) for i in range(25)]
    large += [case(f"large {i}", "Abs", None) for i in range(25)]  # one node, but what it becomes
    drawn = [draw_cases([*small, *large], 0.2, seed) for seed in range(20)]
    assert {len(found) for found in drawn} == {20}
    names = [case.name for found in drawn for case in found]
    assert 0 < sum(name.startswith("large") for name in names) < 0.15 * len(names)
    assert len(set(names)) > 50
    assert draw_cases([*small, *large], 0.2, 3) == drawn[3]


@pytest.mark.slow
def test_no_case_of_the_suite_is_wrong_and_most_are_equal() -> None:
    rows = run_cases(suite(), num_workers=2, limit_s=_LIMIT_S)
    assert_right_or_refused(rows)
    assert Counter(row["result"] for row in rows)["equal"] > 0.75 * len(rows)
