"""What the store keeps: one row for each measured kernel, and notes on links and interference.

The one table of fields here decides what the store and its files accept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import astuple, dataclass
from datetime import datetime, timezone
from typing import Any

from heteroplace.costs.measurement import MODES, Conditions, KernelKey, Measurement
from heteroplace.errors import CostStoreError
from heteroplace.files.reader import MAX_NUMBER, a_count

MAX_INTEGER = 2**63 - 1
"""Largest number that a column holds."""
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|\+00:00)")
_DATE_CHARACTERS = 19  # without the zone, which is always UTC

Row = tuple[KernelKey, Measurement]
Converter = Callable[[object], Any]


@dataclass(frozen=True)
class Note:
    """One number that was measured of something other than a kernel, such as a link."""

    kind: str
    """What it is about: "link", "interference", ..."""
    subject: str
    """Of what, e.g. "ram->gpu0" or "core0,core1"."""
    device: str
    """Fingerprint of the processor, or of both with a blank between."""
    quantity: str
    """What was measured, e.g. "latency" or "slowdown"."""
    value: float
    """In `unit`; finite."""
    unit: str
    """E.g. "ns", "B/s", or "" for a ratio."""
    measured_at: str
    """Date and time in UTC, ISO 8601, to the second."""


@dataclass(frozen=True)
class StoreFilter:
    """Which rows are meant: those that meet all that is not None."""

    op: str | None = None
    """Pattern of the whole text, with the wildcards *, ? and [...]: "nn.conv2d*"."""
    device: str | None = None
    """Pattern of the fingerprint."""
    target: str | None = None
    """Pattern of the target string."""
    mode: str | None = None
    """One of MODES."""
    network: str | None = None
    """Pattern of the digest of the network around the call."""
    batch: int | None = None
    """Items that the network's inputs hold."""
    threads: int | None = None
    """Number of cores."""
    measured_before: str | None = None
    """Date and time in UTC, ISO 8601; rows of that second are left out."""

    @property
    def is_empty(self) -> bool:
        """It lets everything through."""
        return all(value is None for value in astuple(self))


def date_text(seconds: float) -> str:
    """Return the date and time of a Unix time as measurements hold it.

    >>> date_text(0)
    '1970-01-01T00:00:00+00:00'
    """
    return datetime.fromtimestamp(int(seconds), timezone.utc).isoformat()


def date_seconds(text: str) -> int:
    """Return the Unix time of a date and time that the store holds.

    >>> date_seconds("1970-01-01T00:01:00Z")
    60
    """
    local = datetime.fromisoformat(text[:_DATE_CHARACTERS])
    return int(local.replace(tzinfo=timezone.utc).timestamp())


def a_label(value: object) -> str:
    """Accept text of printable characters, also empty."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("text of printable characters")
    return value


def a_printable_name(value: object) -> str:
    """Accept text of printable characters that is not empty."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("text of printable characters that is not empty")
    return value


def a_size(value: object) -> int:
    """Accept a whole number from 0 to MAX_INTEGER."""
    number = a_count(value)
    if number > MAX_INTEGER:
        raise ValueError("a whole number >= 0 that 63 bits hold")
    return number


def a_positive(value: object) -> int:
    """Accept a whole number from 1 to MAX_INTEGER."""
    try:
        number = a_size(value)
    except ValueError:
        number = 0
    if number == 0:
        raise ValueError("a whole number >= 1 that 63 bits hold")
    return number


def a_mode(value: object) -> str:
    """Accept one of MODES."""
    if value not in MODES:
        raise ValueError(f"one of {', '.join(MODES)}")
    return str(value)


def a_date(value: object) -> str:
    """Accept a date and time in UTC to the second, with the zone "Z" or "+00:00"."""
    if isinstance(value, str) and _DATE.fullmatch(value) is not None:
        try:
            date_seconds(value)
        except ValueError:
            pass  # There is no such day; said below as for any other text.
        else:
            return value
    raise ValueError('a date and time in UTC such as "2026-01-31T12:00:00+00:00"')


def a_finite(value: object) -> float:
    """Accept a finite number."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # "< MAX_NUMBER" is false of NaN and infinity, and holds integers that no float does.
    if is_number and abs(value) < MAX_NUMBER:  # type: ignore[arg-type]
        return float(value)  # type: ignore[arg-type]
    raise ValueError("a finite number")


def _a_site(value: object) -> int:
    return -1 if value == -1 else a_size(value)


def _a_size_or_none(value: object) -> int | None:
    return None if value is None else a_size(value)


def _a_number_of_cores(value: object) -> float:
    try:
        number = a_finite(value)
    except ValueError:
        number = -1.0
    if number < 0:
        raise ValueError("a number of cores >= 0")
    return number


KEY_FIELDS: dict[str, Converter] = {
    "kernel": a_printable_name,
    "target": a_printable_name,
    "device": a_printable_name,
    "threads": a_positive,
    "batch": a_positive,
    "mode": a_mode,
    "network": a_label,
    "site": _a_site,
}
"""Fields of KernelKey, in its order, with what they accept."""
MEASUREMENT_FIELDS: dict[str, Converter] = {
    "wall_ns": a_size,
    "spread_ns": a_size,
    "cpu_ns": a_size,
    "num_samples": a_positive,
    "op": a_printable_name,
    "shapes": a_label,
    "flops": a_size,
    "bytes": a_size,
}
"""Fields of Measurement but its conditions."""
CONDITION_FIELDS: dict[str, Converter] = {
    "measured_at": a_date,
    "tvm": a_printable_name,
    "hop_ns": _a_size_or_none,
    "others_cores": _a_number_of_cores,
}
"""Fields of Conditions."""
ROW_FIELDS = {**KEY_FIELDS, **MEASUREMENT_FIELDS, **CONDITION_FIELDS}
"""Of a row; the order is that of the values of `row_values`."""
NOTE_FIELDS: dict[str, Converter] = {
    "kind": a_printable_name,
    "subject": a_printable_name,
    "device": a_printable_name,
    "quantity": a_printable_name,
    "value": a_finite,
    "unit": a_label,
    "measured_at": a_date,
}
"""Fields of Note."""
OPTIONAL_FIELDS: dict[str, object] = {
    "network": "",
    "site": -1,
    "hop_ns": None,
    "others_cores": 0.0,
}
"""Fields of a row that a file may leave out, with what they are then."""
_NUM_KEY, _NUM_MEASURED = len(KEY_FIELDS), len(KEY_FIELDS) + len(MEASUREMENT_FIELDS)


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


def row_of(values: tuple[Any, ...]) -> Row:
    """Return the row of values in the order of ROW_FIELDS."""
    conditions = Conditions(*values[_NUM_MEASURED:])
    return (
        KernelKey(*values[:_NUM_KEY]),
        Measurement(*(*values[_NUM_KEY:_NUM_MEASURED], conditions)),
    )


def _converted(what: str, fields: dict[str, Converter], values: list[Any]) -> tuple[Any, ...]:
    checked, faults = [], []
    for (name, convert), value in zip(fields.items(), values, strict=True):
        try:
            checked.append(convert(value))
        except ValueError as fault:
            faults.append(f"{name}: expected {fault}, got {value!r}")
    if faults:
        raise CostStoreError(f"{what} cannot be stored: {'; '.join(faults)}")
    return tuple(checked)
