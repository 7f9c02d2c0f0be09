"""Figures of one measurement -> a row, and rows -> a table: what all experiments here share.

A row has the columns below, None where an experiment does not measure them, and any further figures
that its experiment states. The table shows a column where some row has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.row_table import row_table

COLUMNS = (
    "model", "trace", "variant", "devices", "ours_ms", "dense_ms", "padded_ms", "stock_ms",
    "onnxruntime_ms", "ratio", "executed_rows", "useful_rows", "hit_rate", "cross_bytes",
    "predicted_ms", "peak_bytes",
)  # fmt: skip
"""Of every row."""


def new_row(
    model: str, trace: str, variant: str, devices: str, **figures: object
) -> dict[str, object]:
    """Return a row; figures that are no column of all rows come behind those.

    >>> row = new_row("switch", "zipf1", "default", "cpu.0", ours_ms=1.5, read_ms=1.0)
    >>> row["ours_ms"], row["dense_ms"], list(row)[-1]
    (1.5, None, 'read_ms')
    """
    named = {"model": model, "trace": trace, "variant": variant, "devices": devices}
    return {column: named.get(column) for column in COLUMNS} | figures


def format_rows(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as a table, without the columns that none of them has."""
    known = dict.fromkeys(column for row in rows for column in row)
    columns = [name for name in known if any(row.get(name) is not None for row in rows)]
    return row_table(rows, columns, num_names=len(columns))
