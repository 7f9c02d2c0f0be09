"""The fields of an export of measurements: their units, defaults and JSON Schema; how each is read.

The store of costs accepts the same (`heteroplace.costs.store_values`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta, Struct, field, structs

from heteroplace.files.faults import expected_by, schema_of
from heteroplace.files.fields.fields import (
    MAX_NUMBER,
    Count,
    Json,
    Number,
    PositiveCount,
    SchemaLink,
    about,
    one_of,
)
from heteroplace.model.units import MAX_INTEGER

SCHEMA_VERSION = 1
MODES = ("hot", "cold", "in place")
"""Alone, over and over, its data in the caches; alone, with the caches emptied before; as one call
among the others of a network that runs on one device."""
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|\+00:00)"
_DATE_EXPECTED = 'a date and time in UTC such as "2026-01-31T12:00:00+00:00"'
_DATE_CHARACTERS = 19  # without the zone, which is always UTC


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


def a_date(value: object) -> str:
    """Accept a date and time in UTC to the second, with the zone "Z" or "+00:00"."""
    if isinstance(value, str) and re.fullmatch(_DATE, value):
        try:
            date_seconds(value)
        except ValueError:
            pass  # There is no such day; said below as for any other text.
        else:
            return value
    raise ValueError(_DATE_EXPECTED)


_IN_PLACE: Json = {
    "if": {"properties": {"mode": {"const": "in place"}}},
    "then": {
        "required": ["network", "site"],
        "properties": {"network": {"minLength": 1}, "site": {"minimum": 0}},
    },
    "else": {"properties": {"network": {"const": ""}, "site": {"const": -1}}},
}
Label = Annotated[str, Meta(title="text of printable characters")]
PrintableName = Annotated[
    str, Meta(min_length=1, title="text of printable characters that is not empty")
]
Mode = Annotated[str, one_of(MODES)]
Date = Annotated[
    str,
    Meta(pattern=f"^{_DATE}$", title=_DATE_EXPECTED, description="In UTC, to the second."),
]
_Value = Annotated[float, Meta(gt=-MAX_NUMBER, lt=MAX_NUMBER, title="a finite number")]


class KernelKey(Struct, forbid_unknown_fields=True, frozen=True, order=True):
    """What makes two measurements comparable; one row of the store."""

    kernel: Annotated[PrintableName, about("Structural hash of the lowered kernel, in hex.")]
    target: Annotated[PrintableName, about("TVM target string.")]
    device: Annotated[PrintableName, about("Fingerprint of the processor.")]
    threads: Annotated[PositiveCount, about("Cores that it ran on; 1 on a GPU.")]
    batch: Annotated[PositiveCount, about("Items that the network's inputs hold.")]
    mode: Mode
    network: Annotated[
        Label, about("In place: digest of the network around it; else absent or empty.")
    ] = ""
    site: Annotated[
        int,
        Meta(ge=-1, le=MAX_INTEGER, title="a whole number >= 0, or -1 for none"),
        about("In place: position of the call among the network's kernel calls; else -1."),
    ] = -1


class MeasuredEntry(KernelKey, frozen=True, kw_only=True):
    """What was measured of one kernel."""

    wall_ns: Annotated[Count, about("Median over the samples.")]
    spread_ns: Annotated[Count, about("Half of the interquartile range of the wall times.")]
    cpu_ns: Annotated[Count, about("Median processor time of a call, all threads together.")]
    num_samples: PositiveCount
    op: Annotated[PrintableName, about("What it computes.")]
    shapes: Annotated[Label, about("Its arguments.")]
    flops: Annotated[Count, about("Floating-point operations of a call; 0: none or unknown.")]
    bytes: Annotated[Count, about("Of all arguments, each once.")]


class MeasurementEntry(MeasuredEntry, frozen=True, kw_only=True):
    """One measured kernel, with the state of the machine meanwhile."""

    measured_at: Date
    tvm: Annotated[PrintableName, about("Version of TVM.")]
    hop_ns: Annotated[
        Count | None, about("Core-to-core latency of a cache line; absent: unknown.")
    ] = None
    others_cores: Annotated[
        Number,
        Meta(title="a number of cores >= 0"),
        about("Cores that other programs used meanwhile."),
    ] = 0.0


class Note(Struct, forbid_unknown_fields=True, frozen=True):
    """What was measured of a link or of interference."""

    kind: PrintableName
    subject: Annotated[PrintableName, about('Of what, e.g. "ram->gpu0".')]
    device: Annotated[PrintableName, about("Fingerprint of the processor, or of both.")]
    quantity: Annotated[PrintableName, about('E.g. "latency" or "slowdown".')]
    value: _Value
    unit: Annotated[Label, about('E.g. "ns", "B/s"; "" of a ratio.')]
    measured_at: Date


class MeasurementsFile(Struct, forbid_unknown_fields=True, kw_only=True):
    """Measured kernels, as `heteroplace costs export` writes them."""

    schema: SchemaLink = field(default="", name="$schema")
    schema_version: Literal[1]
    measurements: tuple[Annotated[MeasurementEntry, Meta(extra_json_schema=_IN_PLACE)], ...]
    notes: tuple[Note, ...] = ()


def readers_of(entry: type[Struct]) -> dict[str, Callable[[object], Any]]:
    """Return what reads each field of an entry; it raises ValueError with what it expects."""
    types = get_type_hints(entry, include_extras=True)
    return {
        name: a_date if types[name] is Date else partial(_read, types[name])
        for name in entry.__struct_fields__
    }


def _read(kind: Any, value: object) -> Any:
    """Return a field's value, which msgspec and `str.isprintable` accept."""
    try:
        accepted = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise ValueError(expected_by(schema_of(kind), value)) from None
    if isinstance(accepted, str) and not accepted.isprintable():
        raise ValueError(expected_by(schema_of(kind), value))
    return accepted


def defaults_of(entry: type[Struct]) -> dict[str, object]:
    """Return what the fields are that a file may leave out."""
    return {
        entry_field.name: entry_field.default
        for entry_field in structs.fields(entry)
        if not entry_field.required
    }
