"""Rows of a benchmark, as they are in its JSON -> a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from heteroplace.report.tables import format_table

_MAX_DIGITS = 6
"""Longer numbers are rounded to four digits."""


def row_table(
    rows: Iterable[Mapping[str, object]],
    columns: Mapping[str, str] | Iterable[str] | None = None,
    num_names: int = 1,
) -> str:
    """Return a line for each row.

    Parameters
    ----------
    columns
        What is shown of a row, in order, and its title; None: everything, by its own name.
    num_names
        How many columns, from the first on, are names: aligned to the left.

    >>> print(row_table([{"name": "a", "ms": 1.23456, "best": None, "on": ["x", "y"]}]))
    name     ms  best   on
    a     1.235     -  x+y
    """
    rows = list(rows)
    if columns is None:
        columns = list(dict.fromkeys(key for row in rows for key in row))
    titles = dict(columns) if isinstance(columns, Mapping) else {key: key for key in columns}
    cells = [[_cell(row.get(key)) for key in titles] for row in rows]
    align = "<" * num_names + ">" * (len(titles) - num_names)
    return format_table(list(titles.values()), cells, align)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return "+".join(map(str, value))
    text = str(value)
    return f"{value:.4g}" if isinstance(value, float) and len(text) > _MAX_DIGITS else text
