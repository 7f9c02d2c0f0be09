"""Rows of `benchmarks distir --run` become tables; programs side by side are timed together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.distir.run_table import run_table
from benchmarks.peers.turns import (
    side_by_side,
)

Row = dict[str, object]


def row(degrees: str, simulated_ms: float, measured_ms: float, **others: object) -> Row:
    data, tensor, pipeline, micro_batches = map(int, degrees.split("/"))
    return {
        "model": "MLP",
        "mode": "inference",
        "batch": 8,
        "D": data,
        "T": tensor,
        "P": pipeline,
        "K": micro_batches,
        "simulated_ms": simulated_ms,
        "beside_ms": 1.25 * measured_ms,
        "measured_ms": measured_ms,
        "predicted_peak_bytes": 1050,
        "measured_peak_bytes": 1000,
        "chosen": False,
        "over_one_core": 4.0 / measured_ms,
        "over_independent": 2.0 / measured_ms,
        "exchange_ms": 0.5,
        "rounds_undisturbed": 3,
        "core_to_core_ns": 60,
        "others_cores": 0.0,
        **others,
    }


ROWS = [
    row("1/1/1/1", 4.0, 4.0),
    row("2/1/1/1", 2.2, 2.0, chosen=True),
    row("1/2/1/1", 2.3, 2.5),
    row("1/1/2/8", 2.4, 2.6),
]


def line_of(text: str, first: str, number: int = 0) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(first)][number].split()


def test_every_run_has_a_line_and_its_errors() -> None:
    lines = run_table(ROWS).splitlines()
    assert lines[2].split() == [
        *("MLP", "inference", "8", "2/1/1/1", "2.200", "2.000", "+10.0"),
        *("2.500", "+25.0", "2.00", "0.00", "0.00", "+5.0", "chosen"),
    ]


def test_ranks_are_compared_with_one_core_and_with_two_alone() -> None:
    found = line_of(run_table(ROWS), "MLP", len(ROWS))
    assert found[2:] == [
        *("8", "4", "7.8", "-3.8", "1.000", "0.0", "25.0", "1.000"),
        *("2.00", "1.00", "0.80", "1.60", "1.54", "1.54", "1.000", "60", "0.00"),
    ]


def test_models_are_summed_up_and_all_of_them() -> None:
    others = [{**each, "model": "BERT"} for each in ROWS]
    text = run_table([*ROWS, *others])
    assert line_of(text, "all")[1] == "8"
    assert line_of(text, "all")[-1] == "8"
    worst = [*ROWS, row("1/1/2/4", 2.0, 3.0)]
    assert line_of(run_table(worst), "MLP", -1)[5] == "33.3"


@pytest.mark.parametrize(("times", "together"), [([[40], [40]], [40]), ([[30], [60]], [40])])
def test_programs_side_by_side_have_their_common_rate(
    times: Sequence[list[int]], together: list[int]
) -> None:
    timers = [lambda num_runs, found=found: found * num_runs for found in times]
    assert side_by_side(timers)(2) == together * 2


def test_an_unknown_latency_is_none_and_not_zero() -> None:
    unknown = [{**each, "core_to_core_ns": None} for each in ROWS]
    assert line_of(run_table(unknown), "MLP", len(ROWS))[-2] == "-"
    some = [*unknown[1:], ROWS[0]]
    assert line_of(run_table(some), "MLP", len(ROWS))[-2] == "60"
