"""Rows of a grid search: what each configuration takes and holds, ranked, on a front, in a file.

DistIR (arXiv 2111.05426), section 5, appends each configuration to a table as soon as it is
simulated, and a search that was ended goes on where it stopped. Ours has a line for each, of the
keys below, and a key that tells what it belongs to: rows of other models, clusters or costs may
stand in the same file.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from heteroplace.errors import ShardingError
from heteroplace.parts.parallel.transforms.degrees import Degrees, parse_degrees

STAGES, WHOLE, EXCLUDED, REFUSED = METHODS = ("stages", "whole", "excluded", "refused")
"""How a row was found: from sums over stages; by simulating every step; a lower bound is above
better ones; it cannot be made."""


@dataclass(frozen=True)
class SearchRow:
    """One configuration."""

    batch: int
    """Rows of the whole batch."""
    degrees: Degrees
    method: str
    """One of METHODS."""
    bound_ns: int = 0
    """What no order of its passes takes less than; 0: not known."""
    makespan_ns: int | None = None
    """Of the whole batch; None: excluded or refused."""
    peak_bytes: int = 0
    """Live at once on the rank that is nearest to its limit."""
    limit_bytes: int = 0
    """Of that rank's memory."""
    bubble: float = 0.0
    """Share of the devices' time in which they neither compute nor exchange nor copy."""
    communication: float = 0.0
    """Share of the devices' time that collectives and copies take."""
    uncovered: int = 0
    """Tasks of a microbatch with an op that has no cost function."""
    extrapolation: float = 1.0
    """How many times outside the measured sizes the furthest task is."""
    reason: str = ""
    """Why it is refused, or was not summed over stages."""

    @property
    def fits(self) -> bool:
        """Whether it can run: no memory overflows."""
        return self.method != REFUSED and self.peak_bytes <= self.limit_bytes

    @property
    def is_simulated(self) -> bool:
        """Whether its time is known."""
        return self.makespan_ns is not None

    @property
    def items_per_second(self) -> float:
        """Rows of the batch per second; 0: not known."""
        return self.batch * 1e9 / self.makespan_ns if self.makespan_ns else 0.0


def ranked(rows: Iterable[SearchRow]) -> list[SearchRow]:
    """Return the rows that fit and were simulated, the fastest first; ties by fewer bytes, degrees.

    Rows of several batches are ranked by rows per second.
    """
    feasible = [row for row in rows if row.fits and row.makespan_ns is not None]
    return sorted(feasible, key=lambda row: (-row.items_per_second, row.peak_bytes, row.degrees))


def pareto_front(rows: Iterable[SearchRow]) -> list[SearchRow]:
    """Return the rows than which no other is both faster and smaller, ascending by peak memory.

    >>> rows = [SearchRow(8, Degrees(d), STAGES, 0, ns, size, 99)
    ...         for d, ns, size in ((1, 9, 5), (2, 7, 6), (3, 8, 7))]
    >>> [row.degrees.data for row in pareto_front(rows)]
    [1, 2]
    """
    front: list[SearchRow] = []
    by_size = sorted(ranked(rows), key=lambda row: (row.peak_bytes, -row.items_per_second))
    for row in by_size:
        if not front or row.items_per_second > front[-1].items_per_second:
            front.append(row)
    return front


def pure(rows: Iterable[SearchRow]) -> dict[str, SearchRow | None]:
    """Return the best row of only data, only tensor and only pipeline parallelism; None: none fits.

    Keys are "data", "tensor" and "pipeline".
    """
    best: dict[str, SearchRow | None] = {"data": None, "tensor": None, "pipeline": None}
    for row in reversed(ranked(rows)):
        for name in best:
            if getattr(row.degrees, name) == row.degrees.num_devices:
                best[name] = row
    return best


_KEY = ("case", "batch", "degrees")
_VALUES = tuple(field.name for field in fields(SearchRow) if field.name not in _KEY)
COLUMNS = (*_KEY, *_VALUES, "items_per_second", "fits")
"""Of the file."""


class SearchFile:
    """A table of rows on disk, to which rows are appended. For one process at a time.

    A line that a killed process left unfinished is taken away.

    Parameters
    ----------
    case
        What rows belong to: a digest of model, cluster, costs and schedule.

    Raises
    ------
    ShardingError
        The file is no such table, or cannot be read or written.
    """

    def __init__(self, path: Path, case: str) -> None:
        self._path, self._case = path, case
        self.rows: dict[tuple[int, Degrees], SearchRow] = {}
        """Those of this case that the file has."""
        header = _line(COLUMNS)
        try:
            # The bytes as they are: they are counted below.
            text = path.read_bytes().decode() if path.exists() else ""
        except (OSError, UnicodeDecodeError) as err:
            raise ShardingError(f"{path}: not a table of a search: {err}") from err
        whole = text[: text.rfind("\n") + 1]
        if whole:
            self._read(whole)
        elif not header.startswith(text):
            raise self._of_others(text.splitlines()[0])
        # Nothing is written to a file before it is known to be such a table.
        try:
            if not whole:
                path.write_text(header, encoding="utf-8")
            elif whole != text:
                os.truncate(path, len(whole.encode()))
        except OSError as err:
            raise ShardingError(f"{path}: cannot be written: {err}") from err

    def _of_others(self, columns: str) -> ShardingError:
        return ShardingError(
            f"{self._path}: the columns are {columns[:200]}; expected {','.join(COLUMNS)}; choose "
            f"another file"
        )

    def _read(self, text: str) -> None:
        lines = csv.reader(io.StringIO(text, newline=""))
        try:
            header = tuple(next(lines))
            if header != COLUMNS:
                raise self._of_others(",".join(header))
            for cells in lines:
                self._add_known(cells, lines.line_num)
        except csv.Error as err:
            raise ShardingError(
                f"{self._path}: not a table of a search: line {lines.line_num}: {err}; choose "
                f"another file"
            ) from err

    def _add_known(self, cells: list[str], line: int) -> None:
        values = dict(zip(COLUMNS, cells, strict=False))
        if values.get("case") != self._case:
            return
        try:
            row = _row(values)
        except (KeyError, ValueError, ShardingError) as err:
            raise ShardingError(
                f"{self._path}: line {line} is no row of a search: {err}; take it away, or choose "
                f"another file"
            ) from err
        self.rows[row.batch, row.degrees] = row

    def add(self, row: SearchRow) -> None:
        """Append a row, unless the file has it; it is there when this returns."""
        if (row.batch, row.degrees) in self.rows:
            return
        self.rows[row.batch, row.degrees] = row
        values = {"case": self._case, "batch": row.batch, "degrees": str(row.degrees)}
        values |= {name: getattr(row, name) for name in COLUMNS[len(_KEY) :]}
        values["makespan_ns"] = "" if row.makespan_ns is None else row.makespan_ns
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_line([values[name] for name in COLUMNS]))
        except OSError as err:
            raise ShardingError(f"{self._path}: cannot be written: {err}") from err


def check_table(path: Path) -> None:
    """Raise ShardingError if a file is there that is no table of a search; as `SearchFile`."""
    if path.exists():
        SearchFile(path, case="")


def _line(cells: Sequence[object]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(
        [" ".join(cell.split()) if isinstance(cell, str) else cell for cell in cells]
    )
    return buffer.getvalue()


def _row(values: dict[str, str]) -> SearchRow:
    if values["method"] not in METHODS:
        raise ValueError(f"method {values['method']!r}; expected one of {', '.join(METHODS)}")
    return SearchRow(
        int(values["batch"]),
        parse_degrees(values["degrees"]),
        values["method"],
        int(values["bound_ns"]),
        int(values["makespan_ns"]) if values["makespan_ns"] else None,
        int(values["peak_bytes"]),
        int(values["limit_bytes"]),
        float(values["bubble"]),
        float(values["communication"]),
        int(values["uncovered"]),
        float(values["extrapolation"]),
        values["reason"],
    )
