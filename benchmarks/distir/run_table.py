"""Rows of real runs of `benchmarks distir --run` -> how good predictions were, and what ranks gain.

"simulated" is what was predicted before anything was built; "measured" are medians of rounds;
"kernels beside" is simulated too, with kernels that were timed in the same rounds as the runs: what
the machine was faster or slower at planning is in the first one's errors, and not in the other's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from heteroplace.report.accuracy import error_ratios, error_summary, top_k_regret
from heteroplace.report.tables import format_table
from heteroplace.stats import median, spearman

Row = dict[str, object]
_BESIDE = ["beside: |error|", "Spearman"]


def run_table(rows: Sequence[Row]) -> str:
    """Return all rows; a line for each model, mode and batch; one for each model and for all.

    Errors are in percent of what was measured. Speeds of D, T and P are those of their best K, over
    one core and (D) over two independent programs of one core side by side, in the same rounds.
    "at most" is what that would be if nothing but the exchange of gradients by the measured links
    came to the two programs. "auto" is the speed of the degrees that the search chose over that of
    the fastest of all.
    """
    return "\n\n".join((_every(rows), _groups(rows), _models(rows)))


def _every(rows: Sequence[Row]) -> str:
    headers = ["model", "mode", "batch", "D/T/P/K", "simulated ms", "measured ms", "error %"]
    headers += ["kernels beside", "error %", "over one core", "peak MiB", "measured", "error %", ""]
    cells = []
    for row in rows:
        (error,) = error_ratios([_number(row, "simulated_ms")], [_number(row, "measured_ms")])
        (beside,) = error_ratios([_number(row, "beside_ms")], [_number(row, "measured_ms")])
        (excess,) = _peak_errors([row])
        cells.append(
            [
                *(str(row[key]) for key in ("model", "mode", "batch")),
                "/".join(str(row[key]) for key in "DTPK"),
                f"{_number(row, 'simulated_ms'):.3f}",
                f"{_number(row, 'measured_ms'):.3f}",
                f"{100 * error:+.1f}",
                f"{_number(row, 'beside_ms'):.3f}",
                f"{100 * beside:+.1f}",
                f"{_number(row, 'over_one_core'):.2f}",
                f"{_number(row, 'predicted_peak_bytes') / 2**20:.2f}",
                f"{_number(row, 'measured_peak_bytes') / 2**20:.2f}",
                f"{100 * excess:+.1f}",
                "chosen" if row["chosen"] else "",
            ]
        )
    return format_table(headers, cells, "<<><" + ">" * 9 + "<")


def _groups(rows: Sequence[Row]) -> str:
    headers = ["model", "mode", "batch", "degrees", "median |error|", "bias", "Spearman", "regret"]
    headers += _BESIDE
    headers += [
        "D=2",
        "over two alone",
        "at most",
        "T=2",
        "P=2",
        "P=2 K=8",
        "auto",
        "core to core ns",
        "others",
    ]
    cells = []
    for key in dict.fromkeys(_group(row) for row in rows):
        chosen = [row for row in rows if _group(row) == key]
        cells.append(
            [
                *key,
                *_accuracy(chosen),
                *_beside(chosen),
                _speed(chosen, "over_one_core", lambda row: row["D"] == 2),
                _speed(chosen, "over_independent", lambda row: row["D"] == 2),
                _most_of_independent(chosen),
                _speed(chosen, "over_one_core", lambda row: row["T"] == 2),
                _speed(chosen, "over_one_core", lambda row: row["P"] == 2),
                _speed(chosen, "over_one_core", lambda row: row["P"] == 2 and row["K"] == 8),
                f"{_auto(chosen):.3f}",
                _median_or_none(chosen, "core_to_core_ns"),
                f"{median([_number(row, 'others_cores') for row in chosen]):.2f}",
            ]
        )
    return format_table(headers, cells, "<<" + ">" * (len(headers) - 2))


def _models(rows: Sequence[Row]) -> str:
    headers = ["of all", "degrees", "median |error|", "bias", "Spearman", "regret", "90th |error|"]
    headers += [*_BESIDE, "peak error", "lowest", "highest", "undisturbed"]
    names = list(dict.fromkeys(str(row["model"]) for row in rows))
    cells = []
    for name in [*names, "all"] if len(names) > 1 else names:
        chosen = [row for row in rows if name in ("all", row["model"])]
        peaks = _peak_errors(chosen)
        times = error_summary(*_times(chosen))
        regrets = [_regret([r for r in chosen if _group(r) == key]) for key in _keys(chosen)]
        cells.append(
            [
                name,
                *_accuracy(chosen)[:-1],
                f"{100 * max(regrets):.1f}",
                f"{100 * times.p90_ratio:.1f}",
                *_beside(chosen),
                *(f"{100 * value:+.1f}" for value in (median(peaks), min(peaks), max(peaks))),
                str(sum(row["rounds_undisturbed"] != 0 for row in chosen)),
            ]
        )
    return format_table(headers, cells, "<" + ">" * (len(headers) - 1))


def _accuracy(rows: Sequence[Row]) -> list[str]:
    """Number, median error, bias, rank correlation of items per second, regret of the first."""
    simulated, measured = _times(rows)
    errors = error_summary(simulated, measured)
    rank = spearman(_rates(rows, simulated), _rates(rows, measured))
    return [
        str(errors.count),
        f"{100 * errors.median_ratio:.1f}",
        f"{100 * errors.bias_ratio:+.1f}",
        "-" if rank is None else f"{rank:.3f}",
        f"{100 * _regret(rows):.1f}",
    ]


def _beside(rows: Sequence[Row]) -> list[str]:
    """Median error and rank correlation with the kernels of the same rounds."""
    simulated, measured = [_number(row, "beside_ms") for row in rows], _times(rows)[1]
    rank = spearman(_rates(rows, simulated), _rates(rows, measured))
    error = error_summary(simulated, measured).median_ratio
    return [f"{100 * error:.1f}", "-" if rank is None else f"{rank:.3f}"]


def _regret(rows: Sequence[Row]) -> float:
    simulated, measured = _times(rows)
    return top_k_regret(_rates(rows, simulated), _rates(rows, measured), 1)


def _times(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return (
        [_number(row, "simulated_ms") for row in rows],
        [_number(row, "measured_ms") for row in rows],
    )


def _rates(rows: Sequence[Row], times_ms: Sequence[float]) -> list[float]:
    """Items per ms."""
    return [_number(row, "batch") / ms for row, ms in zip(rows, times_ms, strict=True)]


def _auto(rows: Sequence[Row]) -> float:
    """Speed of the chosen degrees over that of the fastest."""
    fastest = min(_number(row, "measured_ms") for row in rows)
    return fastest / next(_number(row, "measured_ms") for row in rows if row["chosen"])


def _speed(rows: Sequence[Row], key: str, is_meant: Callable[[Row], bool]) -> str:
    found = [_number(row, key) for row in rows if is_meant(row)]
    return f"{max(found):.2f}" if found else "-"


def _most_of_independent(rows: Sequence[Row]) -> str:
    """Speed of D = 2 over two programs alone that exchange what its collectives do."""
    found = []
    for row in rows:
        if row["D"] == 2:
            alone_ms = _number(row, "measured_ms") * _number(row, "over_independent")
            found.append(alone_ms / (alone_ms + _number(row, "exchange_ms")))
    return f"{max(found):.2f}" if found else "-"


def _peak_errors(rows: Sequence[Row]) -> list[float]:
    return error_ratios(
        [_number(row, "predicted_peak_bytes") for row in rows],
        [_number(row, "measured_peak_bytes") for row in rows],
    )


def _group(row: Row) -> tuple[str, str, str]:
    return str(row["model"]), str(row["mode"]), str(row["batch"])


def _keys(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    return list(dict.fromkeys(_group(row) for row in rows))


def _median_or_none(rows: Sequence[Row], key: str) -> str:
    known = [_number(row, key) for row in rows if row[key] is not None]
    return f"{median(known):.0f}" if known else "-"


def _number(row: Row, key: str) -> float:
    return float(str(row[key]))
