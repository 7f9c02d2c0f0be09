"""Measurements as JSON, to bring them to another machine: all rows of a store, or some.

A file is {"schema_version": 1, "measurements": [...], "notes": [...]}; each element is flat, with
the fields of `KernelKey`, `Measurement` and `Conditions`, or those of `Note`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from heteroplace.costs.store_values import (
    NOTE_FIELDS,
    OPTIONAL_FIELDS,
    ROW_FIELDS,
    Note,
    Row,
    note_values,
    place_fault,
    row_of,
    row_values,
)
from heteroplace.errors import CostStoreError
from heteroplace.files.reader import Faults, ObjectReader, read_json, schema_version

SCHEMA_VERSION = 1


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
    faults = Faults(source, CostStoreError)
    root = ObjectReader(value, "$", faults)
    schema_version(root, SCHEMA_VERSION)
    rows = [_read_row(reader) for reader in root.objects("measurements", is_required=True)]
    notes = [_read_note(reader) for reader in root.objects("notes")]
    root.finish()
    faults.check()
    return [row_of(row) for row in rows], [Note(*note) for note in notes]


def _row_to_json(row: Row) -> dict[str, object]:
    values = zip(ROW_FIELDS, row_values(*row), strict=True)
    return {
        name: value
        for name, value in values
        if name not in OPTIONAL_FIELDS or value != OPTIONAL_FIELDS[name]
    }


def _read_row(reader: ObjectReader) -> tuple[Any, ...]:
    values: dict[str, Any] = {}
    for name, convert in ROW_FIELDS.items():
        if name in OPTIONAL_FIELDS:
            values[name] = reader.optional(name, convert, OPTIONAL_FIELDS[name])
        else:
            values[name] = reader.required(name, convert, None)
    reader.finish()
    if values["mode"] is not None:  # Else that is a fault already.
        network, site = values["network"], values["site"]
        fault = place_fault(values["mode"], network, site)
        if fault is not None:
            reader.faults.add(reader.path, f"{fault}, got {json.dumps(network)} and {site}")
    return tuple(values.values())


def _read_note(reader: ObjectReader) -> tuple[Any, ...]:
    values = [reader.required(name, convert, None) for name, convert in NOTE_FIELDS.items()]
    reader.finish()
    return tuple(values)
