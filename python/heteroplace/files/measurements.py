"""The fields of an export of measurements: their units, defaults and JSON Schema; how each is read.

The store of costs accepts the same (`heteroplace.costs.store_values`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field, inspect, structs

from heteroplace.files.fields.fields import (
    MAX_NUMBER,
    Json,
    SchemaLink,
    about,
    an_integer,
    kind,
    one_of,
    version,
)
from heteroplace.model.units import IN_63_BITS, MAX_INTEGER, is_integer

SCHEMA_VERSION = 1
MODES = ("hot", "cold", "in place")
"""Alone, over and over, its data in the caches; alone, with the caches emptied before; as one call
among the others of a network that runs on one device."""
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|\+00:00)")
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
    if isinstance(value, str) and _DATE.fullmatch(value) is not None:
        try:
            date_seconds(value)
        except ValueError:
            pass  # There is no such day; said below as for any other text.
        else:
            return value
    raise ValueError('a date and time in UTC such as "2026-01-31T12:00:00+00:00"')


def _text(expected: str, shortest: int) -> Meta:
    """The kind of printable texts."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not value.isprintable() or len(value) < shortest:
            raise ValueError(expected)
        return value

    return kind(read, "", shortest=shortest or None)


def _whole(least: int, otherwise: int | None) -> Meta:
    """The kind of whole numbers from `least` that a column holds, and of what stands for none."""

    def read(value: object) -> int | None:
        if value == otherwise and not isinstance(value, bool):
            return otherwise
        if is_integer(value) and least <= value <= MAX_INTEGER:  # type: ignore[operator]
            return an_integer(value)
        is_large = is_integer(value) and value > MAX_INTEGER  # type: ignore[operator]
        raise ValueError(f"a whole number >= {least}{f' {IN_63_BITS}' if is_large else ''}")

    smallest = least if otherwise is None else min(least, otherwise)
    schema: Json = {"type": "integer", "minimum": smallest, "maximum": MAX_INTEGER}
    if otherwise is None:
        schema = {"anyOf": [schema, {"type": "null"}]}
    return kind(read, otherwise, schema=schema)


def _number(least: float, expected: str, schema: Json) -> Meta:
    """The kind of finite numbers from `least`, integers made floating-point."""

    def read(value: object) -> float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # "< MAX_NUMBER" is false of NaN and infinity, and holds integers that no float does.
        if is_number and abs(value) < MAX_NUMBER and value >= least:  # type: ignore[arg-type, operator]
            return float(value)  # type: ignore[arg-type]
        raise ValueError(expected)

    return kind(read, 0.0, schema={"type": "number", **schema})


_DATES: Json = {"type": "string", "pattern": f"^{_DATE.pattern}$"}
_IN_PLACE: Json = {
    "if": {"properties": {"mode": {"const": "in place"}}},
    "then": {
        "required": ["network", "site"],
        "properties": {"network": {"minLength": 1}, "site": {"minimum": 0}},
    },
    "else": {"properties": {"network": {"const": ""}, "site": {"const": -1}}},
}
Label = Annotated[str, _text("text of printable characters", 0)]
PrintableName = Annotated[str, _text("text of printable characters that is not empty", 1)]
Whole = Annotated[int, _whole(0, 0)]
Positive = Annotated[int, _whole(1, 1)]
Mode = Annotated[str, one_of(MODES, "")]
Date = Annotated[
    str, kind(a_date, "", schema=_DATES), about("Date and time in UTC, to the second.")
]


class KernelKey(Struct, forbid_unknown_fields=True, frozen=True, order=True):
    """What makes two measurements comparable; one row of the store."""

    kernel: Annotated[PrintableName, about("Structural hash of the lowered kernel, in hex.")]
    target: Annotated[PrintableName, about("TVM target string.")]
    device: Annotated[PrintableName, about("Fingerprint of the processor.")]
    threads: Annotated[Positive, about("Cores that it ran on; 1 on a GPU.")]
    batch: Annotated[Positive, about("Items that the network's inputs hold.")]
    mode: Mode
    network: Annotated[
        Label, about("In place: digest of the network around it; else absent or empty.")
    ] = ""
    site: Annotated[
        int,
        _whole(0, -1),
        about("In place: position of the call among the network's kernel calls; else -1."),
    ] = -1


class MeasuredEntry(KernelKey, frozen=True, kw_only=True):
    """What was measured of one kernel."""

    wall_ns: Annotated[Whole, about("Median over the samples.")]
    spread_ns: Annotated[Whole, about("Half of the interquartile range of the wall times.")]
    cpu_ns: Annotated[Whole, about("Median processor time of a call, all threads together.")]
    num_samples: Positive
    op: Annotated[PrintableName, about("What it computes.")]
    shapes: Annotated[Label, about("Its arguments.")]
    flops: Annotated[Whole, about("Floating-point operations of a call; 0: none or unknown.")]
    bytes: Annotated[Whole, about("Of all arguments, each once.")]


class MeasurementEntry(MeasuredEntry, frozen=True, kw_only=True):
    """One measured kernel, with the state of the machine meanwhile."""

    measured_at: Date
    tvm: Annotated[PrintableName, about("Version of TVM.")]
    hop_ns: Annotated[
        int | None,
        _whole(0, None),
        about("Core-to-core latency of a cache line; absent: unknown."),
    ] = None
    others_cores: Annotated[
        float,
        _number(0.0, "a number of cores >= 0", {"minimum": 0}),
        about("Cores that other programs used meanwhile."),
    ] = 0.0


class Note(Struct, forbid_unknown_fields=True, frozen=True):
    """What was measured of a link or of interference."""

    kind: PrintableName
    subject: Annotated[PrintableName, about('Of what, e.g. "ram->gpu0".')]
    device: Annotated[PrintableName, about("Fingerprint of the processor, or of both.")]
    quantity: Annotated[PrintableName, about('E.g. "latency" or "slowdown".')]
    value: Annotated[float, _number(-MAX_NUMBER, "a finite number", {})]
    unit: Annotated[Label, about('E.g. "ns", "B/s"; "" of a ratio.')]
    measured_at: Date


class MeasurementsFile(Struct, forbid_unknown_fields=True, kw_only=True):
    """Measured kernels, as `heteroplace costs export` writes them."""

    schema: SchemaLink = field(default="", name="$schema")
    schema_version: Annotated[Literal[1], version(SCHEMA_VERSION)]
    measurements: tuple[Annotated[MeasurementEntry, Meta(extra_json_schema=_IN_PLACE)], ...]
    notes: tuple[Note, ...] = ()


def readers_of(entry: type[Struct]) -> dict[str, Callable[[object], Any]]:
    """Return what reads each field of an entry; it raises ValueError with what it expects."""
    info = inspect.type_info(entry)
    assert isinstance(info, inspect.StructType)
    readers = {}
    for described in info.fields:
        assert isinstance(described.type, inspect.Metadata) and described.type.extra is not None
        readers[described.name] = described.type.extra["read"]
    return readers


def defaults_of(entry: type[Struct]) -> dict[str, object]:
    """Return what the fields are that a file may leave out."""
    return {found.name: found.default for found in structs.fields(entry) if not found.required}
