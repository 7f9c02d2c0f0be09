"""`bench profile`: both sides are measured, each in a process of its own."""

from __future__ import annotations

import pytest

from heteroplace.bench import profile

ROW = {
    "name": "resnet50", "kernels": 30, "measured": 60, "wall_s": 12.5, "cpu_s": 11.25,
    "measure_s": 2.5, "stock_wall_s": 50.0, "stock_cpu_s": 45.0, "wall_ratio": 0.25,
    "cpu_ratio": 0.25,
}  # fmt: skip


def test_the_table_has_both_sides_and_the_ratios() -> None:
    lines = profile.table([ROW]).splitlines()
    assert lines[0].split()[-4:] == ["wall", "ratio", "CPU", "ratio"]
    assert lines[-1].split() == [str(value) for value in ROW.values()]


def test_a_name_that_matches_nothing_gives_no_row() -> None:
    assert list(profile.run("^no such network$", lambda line: None)) == []


@pytest.mark.slow
def test_both_sides_are_measured() -> None:
    said: list[str] = []
    (row,) = profile.run("^squeezenet$", said.append)
    assert said == ["squeezenet: ours", "squeezenet: stock"]
    assert row["measured"] == 2 * row["kernels"] > 0
    for clock in ("wall", "cpu"):
        ratio = row[f"{clock}_s"] / row[f"stock_{clock}_s"]
        assert row[f"{clock}_ratio"] == pytest.approx(ratio, abs=0.001)
