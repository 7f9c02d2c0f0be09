"""Measurements as JSON, to bring them to another machine: all rows of a store, or some.

A file is {"schema_version": 1, "measurements": [...], "notes": [...]}; each element is flat, with
the fields of `KernelKey`, `Measurement` and `Conditions`, or those of `Note`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from msgspec import structs

from heteroplace.costs.store_values import (
    NOTE_FIELDS,
    ROW_FIELDS,
    Row,
    note_values,
    place_fault,
    row_of,
    row_values,
)
from heteroplace.errors import CostStoreError
from heteroplace.files.measurements import (
    SCHEMA_VERSION,
    MeasurementEntry,
    MeasurementsFile,
    Note,
    defaults_of,
)
from heteroplace.files.reader import read_json, read_struct


def rows_to_json(rows: Iterable[Row], notes: Iterable[Note] = ()) -> dict[str, object]:
    """Return rows and notes as a value for `json.dump` or `write_json`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "measurements": [_row_to_json(row) for row in rows],
        "notes": [dict(zip(NOTE_FIELDS, note_values(note), strict=True)) for note in notes],
    }


def load_rows(path: str | os.PathLike[str]) -> tuple[list[Row], list[Note]]:
    """Return the measurements and the notes in a file.

    Raises
    ------
    CostStoreError
        The file cannot be read, is of another version, or has faults (all are named, with their
        JSON paths).
    """
    return rows_from_json(read_json(path, CostStoreError), os.fspath(path))


def rows_from_json(value: object, source: str = "costs") -> tuple[list[Row], list[Note]]:
    """Return what a parsed JSON value holds; raises as `load_rows`."""
    file, faults = read_struct(value, MeasurementsFile, source, CostStoreError)
    for key, fields in (("measurements", ROW_FIELDS), ("notes", NOTE_FIELDS)):
        for index, entry in enumerate(getattr(file, key)):
            for name, read in fields.items():
                faults.parse((key, index, name), read, getattr(entry, name), None)
    for index, entry in enumerate(file.measurements):
        fault = place_fault(entry.mode, entry.network, entry.site)
        if fault is not None:
            got = f"{json.dumps(entry.network)} and {entry.site}"
            faults.add(("measurements", index), f"{fault}, got {got}")
    faults.check()
    rows = [row_of(structs.astuple(entry)) for entry in file.measurements]
    return rows, list(file.notes)


def _row_to_json(row: Row) -> dict[str, object]:
    optional = defaults_of(MeasurementEntry)
    values = zip(ROW_FIELDS, row_values(*row), strict=True)
    return {
        name: value for name, value in values if name not in optional or value != optional[name]
    }
