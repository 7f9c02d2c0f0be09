"""Rows of `benchmarks prediction` -> tables and the groups of the scatter plot."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.distir.published import MODELS
from benchmarks.plots import Series
from heteroplace.report.accuracy import (
    error_ratios,
    error_summary,
    top_k_recall,
    top_k_regret,
)
from heteroplace.report.tables import format_table
from heteroplace.stats import median, spearman

Row = dict[str, object]

GROUPS = ("random", "all")
"""Summed up apart: random plans only, as in DistIR, and together with those of the solvers."""
_TOP_K = (1, 3, 5)
_RECALL_K = 10


def prediction_table(rows: Sequence[Row]) -> str:
    """Return one line per model and group of plans, and what DistIR reports in a block of its own.

    Errors are in percent: of makespans (median and 90th percentile of their size, median with
    sign), of task times within plans (weighted, median over the plans), of memory. Pace: time of
    the plans on one device, in the same rounds, over what was expected of them before. Halves:
    Spearman's correlation of what was measured in every other round with the rounds between; where
    runs do not repeat their own order, nobody can predict it.
    """
    cells = []
    for model in dict.fromkeys(str(row["model"]) for row in rows):
        for group in GROUPS:
            chosen = [
                row for row in rows if row["model"] == model and group in ("all", str(row["kind"]))
            ]
            if chosen:
                cells.append([model, group, *_cells(chosen)])
    headers = ["model", "plans", "number", "median |error|", "90th", "bias", "Spearman", "halves"]
    headers += [f"regret@{k}" for k in _TOP_K] + [f"recall@{_RECALL_K}"]
    headers += ["tasks", "memory", "worst memory", "pace", "core to core ns", "others' cores"]
    ours = format_table(headers, cells, "<<" + ">" * (len(headers) - 2))
    theirs = format_table(
        ["model", "number", "Spearman"],
        [[each.name, str(each.configurations), f"{each.spearman:.2f}"] for each in MODELS],
        "<>>",
    )
    return (
        f"Measured here; errors in %\n{ours}\n{_disturbance(rows)}\n"
        f"From the paper on DistIR (simulated against real throughput; other models, on 16 V100)\n"
        f"{theirs}"
    )


def _disturbance(rows: Sequence[Row]) -> str:
    """A line that warns of what was never measured in peace; "" if nothing is."""
    disturbed = sum(row["rounds_undisturbed"] == 0 for row in rows)
    if not disturbed:
        return ""
    return (
        f"{disturbed} of {len(rows)} plans were only measured on far cores or beside other "
        f"programs; their times say little\n"
    )


def _cells(rows: Sequence[Row]) -> list[str]:
    predicted, measured = _numbers(rows, "predicted_ms"), _numbers(rows, "measured_ms")
    times = error_summary(predicted, measured)
    rank = spearman(predicted, measured)
    promised, real = ([1 / value for value in side] for side in (predicted, measured))
    peaks = error_ratios(
        _numbers(rows, "predicted_peak_bytes"), _numbers(rows, "measured_peak_bytes")
    )
    tasks = _numbers(rows, "task_error")
    latencies = _numbers(rows, "core_to_core_ns")
    return [
        str(times.count),
        *map(_percent, (times.median_ratio, times.p90_ratio)),
        f"{100 * times.bias_ratio:+.1f}",
        *("-" if value is None else f"{value:.3f}" for value in (rank, _repeatability(rows))),
        *(_percent(top_k_regret(promised, real, k)) for k in _TOP_K),
        f"{top_k_recall(promised, real, _RECALL_K):.2f}",
        _percent(median(tasks)) if tasks else "-",
        f"{100 * median(peaks):+.1f}",
        f"{100 * max(peaks, key=abs):+.1f}",
        f"{median(_numbers(rows, 'pace')):.2f}",
        f"{median(latencies):.0f}" if latencies else "-",
        f"{median(_numbers(rows, 'others_cores')):.2f}",
    ]


def _repeatability(rows: Sequence[Row]) -> float | None:
    """Spearman's correlation of the medians of even and of odd rounds; None: too few rounds."""
    rounds = [[float(str(value)) for value in _list(row["rounds_ms"])] for row in rows]
    if min(map(len, rounds)) < 2:
        return None
    even, odd = ([median(times[half::2]) for times in rounds] for half in (0, 1))
    return spearman(even, odd)


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def scatter_groups(rows: Sequence[Row]) -> list[Series]:
    """Return (measured, predicted) in ms of all plans, a group for each model."""
    groups = []
    for model in dict.fromkeys(str(row["model"]) for row in rows):
        chosen = [row for row in rows if row["model"] == model]
        measured, predicted = _numbers(chosen, "measured_ms"), _numbers(chosen, "predicted_ms")
        errors = error_summary(predicted, measured)
        note = f"{errors.count} plans, median {_percent(errors.median_ratio)} % off"
        groups.append(Series(model, tuple(zip(measured, predicted, strict=True)), note))
    return groups


def _numbers(rows: Sequence[Row], key: str) -> list[float]:
    """The values of one key, without those that are unknown."""
    return [float(str(row[key])) for row in rows if row[key] is not None]


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f}"
