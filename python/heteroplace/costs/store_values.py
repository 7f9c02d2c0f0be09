"""What the store keeps: one row for each measured kernel, and notes on links and interference.

What the fields accept is said once, in `heteroplace.files.measurements`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

from heteroplace.costs.measurement import Conditions, Measurement
from heteroplace.errors import CostStoreError
from heteroplace.files.measurements import (
    MODES,
    KernelKey,
    MeasuredEntry,
    MeasurementEntry,
    Note,
    date_text,
    readers_of,
)
from heteroplace.options import count, option

Row = tuple[KernelKey, Measurement]
Reader = Callable[[object], Any]


UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
"""Of ages."""


def _date_before(age: str) -> str:
    """The date and time an age such as 30d ago."""
    match = re.fullmatch(r"([0-9]{1,9}) ?([a-z]+)", age)
    if match is None or match[2] not in UNITS_S:
        units = ", ".join(UNITS_S)
        raise ValueError(f"expected an age such as 30d or 12h (units: {units}), got {age!r}")
    date_s = time.time() - int(match[1]) * UNITS_S[match[2]]
    if date_s < 0:
        raise ValueError(f"expected an age since 1970, got {age!r}")
    return date_text(date_s)


@dataclass(frozen=True)
class StoreFilter:
    """Which rows are meant: those that meet all that is not None.

    A pattern is of the whole text, with the wildcards *, ? and [...].
    """

    op: str | None = option(None, "ops, e.g. 'nn.conv2d*'", metavar="PATTERN")
    device: str | None = option(None, "fingerprints, e.g. '*Xeon*'", metavar="PATTERN")
    target: str | None = option(None, "target strings, e.g. 'cuda*'", metavar="PATTERN")
    mode: str | None = option(
        # Also "in-place", which needs no quotes.
        *(None, "how it was measured"),
        choices=lambda: MODES,
        parse=lambda text: text.replace("-", " "),
    )
    network: str | None = option(None, "digests of networks", metavar="PATTERN")
    batch: int | None = option(None, "items run together", metavar="N", parse=count)
    threads: int | None = option(None, "number of cores", metavar="N", parse=count)
    measured_before: str | None = option(
        None,
        f"e.g. 30d (units: {', '.join(UNITS_S)})",
        name="older_than",
        metavar="AGE",
        parse=_date_before,
    )
    """Date and time in UTC, ISO 8601; rows of that second are left out."""

    @property
    def is_empty(self) -> bool:
        """It lets everything through."""
        return all(value is None for value in astuple(self))


KEY_FIELDS = readers_of(KernelKey)
"""Fields of KernelKey, in its order, with what they accept."""
_MEASURED = readers_of(MeasuredEntry)
ROW_FIELDS = readers_of(MeasurementEntry)
"""Of a row; the order is that of the values of `row_values`."""
MEASUREMENT_FIELDS = {name: _MEASURED[name] for name in _MEASURED if name not in KEY_FIELDS}
"""Fields of Measurement but its conditions."""
CONDITION_FIELDS = {name: ROW_FIELDS[name] for name in ROW_FIELDS if name not in _MEASURED}
"""Fields of Conditions."""
NOTE_FIELDS = readers_of(Note)
"""Fields of Note."""
_NUM_KEY, _NUM_MEASURED = len(KEY_FIELDS), len(_MEASURED)


def place_fault(mode: str, network: str, site: int) -> str | None:
    """Return what is wrong with network and site for a mode, or None."""
    if mode == "in place" and (not network or site < 0):
        return "expected a network and a site >= 0 with the mode 'in place'"
    if mode != "in place" and (network or site != -1):
        return f"expected no network and site -1 with the mode {mode!r}"
    return None


def row_values(key: KernelKey, measurement: Measurement) -> tuple[Any, ...]:
    """Return a row as plain values in the order of ROW_FIELDS.

    Raises
    ------
    CostStoreError
        Some are not what the field is for; all are named.
    """
    conditions = measurement.conditions
    values = [getattr(key, name) for name in KEY_FIELDS]
    values += [getattr(measurement, name) for name in MEASUREMENT_FIELDS]
    values += [getattr(conditions, name) for name in CONDITION_FIELDS]
    checked = _converted(f"measurement of kernel {key.kernel!r}", ROW_FIELDS, values)
    fault = place_fault(key.mode, key.network, key.site)
    if fault is not None:
        raise CostStoreError(
            f"measurement of kernel {key.kernel!r}: {fault}, got {key.network!r} and {key.site}"
        )
    return checked


def note_values(note: Note) -> tuple[Any, ...]:
    """Return a note as plain values in the order of NOTE_FIELDS; raises as `row_values`."""
    values = [getattr(note, name) for name in NOTE_FIELDS]
    return _converted(f"note on {note.subject!r}", NOTE_FIELDS, values)


def checked_note_of(values: tuple[Any, ...]) -> Note:
    """Return the note of values out of a file that may be damaged; raises as `row_values`."""
    return Note(*_converted("a note of the store", NOTE_FIELDS, list(values), "is damaged"))


def row_of(values: tuple[Any, ...]) -> Row:
    """Return the row of values in the order of ROW_FIELDS."""
    conditions = Conditions(*values[_NUM_MEASURED:])
    return (
        KernelKey(*values[:_NUM_KEY]),
        Measurement(*(*values[_NUM_KEY:_NUM_MEASURED], conditions)),
    )


def checked_row_of(values: tuple[Any, ...]) -> Row:
    """Return the row of values out of a file that may be damaged; raises as `row_values`."""
    row = row_of(_converted("a measurement of the store", ROW_FIELDS, list(values), "is damaged"))
    fault = place_fault(row[0].mode, row[0].network, row[0].site)
    if fault is not None:
        raise CostStoreError(f"a measurement of the store is damaged: {fault}")
    return row


def _converted(
    what: str, fields: dict[str, Reader], values: list[Any], complaint: str = "cannot be stored"
) -> tuple[Any, ...]:
    checked, faults = [], []
    for (name, convert), value in zip(fields.items(), values, strict=True):
        try:
            checked.append(convert(value))
        except ValueError as fault:
            faults.append(f"{name}: expected {fault}, got {value!r}")
    if faults:
        raise CostStoreError(f"{what} {complaint}: {'; '.join(faults)}")
    return tuple(checked)
