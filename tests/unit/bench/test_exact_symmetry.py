"""`benchmarks exact --symmetry`: one optimum for all orders, less work with symmetry."""

from __future__ import annotations

import pytest

from benchmarks.exact import command as exact
from benchmarks.exact.symmetry import symmetry_rows


def test_symmetry_saves_work_on_two_nodes() -> None:
    rows = symmetry_rows(lambda _: None)
    every, symmetric = next(rows), next(rows)
    assert (every["order"], symmetric["order"]) == ("none", "symmetry")
    assert every["value_ns"] == symmetric["value_ns"]
    assert int(str(every["work"])) >= 4 * int(str(symmetric["work"]))


@pytest.mark.costly(12)
def test_all_orders_have_the_same_optimum() -> None:
    said: list[str] = []
    rows = list(symmetry_rows(said.append, tasks=3, seeds=2))
    assert len(said) == len(rows) == 2 * 3 + 3 * 2
    optimum = {row["graph"]: row["value_ns"] for row in rows if row["order"] == "none"}
    assert all(row["value_ns"] == optimum[row["graph"]] for row in rows)
    work = {row["graph"]: int(str(row["work"])) for row in rows if row["order"] == "none"}
    for row in rows:
        if row["order"] == "symmetry":
            factor = 4 if row["graph"] == "2 nodes of 2" else 10
            assert work[row["graph"]] >= factor * int(str(row["work"]))
    assert "3 nodes of 2, seed 1" in exact.table(rows)
