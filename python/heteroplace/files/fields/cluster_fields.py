"""The fields of cluster.json: their units, defaults and JSON Schema; how each is read."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from heteroplace.files.fields.fields import (
    Count,
    Json,
    Name,
    SchemaLink,
    Size,
    Text,
    a_count,
    a_name,
    about,
    distinct,
    kind,
    list_of,
    one_of,
    positive,
    quantity,
    size_schema,
    version,
)
from heteroplace.model.cluster import CONGESTION_MODES
from heteroplace.model.units import (
    parse_bandwidth,
    parse_bytes,
    parse_duration,
    parse_flops_per_second,
)

SCHEMA_VERSION = 1
_DEVICE = re.compile(r"(?s)(.+?)(?::([0-9]+))?")
_TARGET = (
    'a TVM target such as "llvm -mcpu=native" or {"kind": "cuda", "arch": "sm_75"} '
    "(values: text without spaces, whole numbers, true or false, lists of these)"
)


def _target(value: object) -> str:
    """Return a TVM target string; a dict becomes "KIND -key=value ..." with the keys sorted."""
    if isinstance(value, str) and value.strip():
        return value
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise ValueError(_TARGET)
    words = [value["kind"]]
    for key in sorted(value):
        if key != "kind":
            elements = value[key] if isinstance(value[key], list) else [value[key]]
            words.append(f"-{key}={','.join(map(_target_word, elements))}")
    if any(not word or any(c.isspace() for c in word) for word in words):
        raise ValueError(_TARGET)
    return " ".join(words)


def _target_word(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int):
        return str(int(value))
    raise ValueError(_TARGET)


def _kind_and_index(value: object) -> tuple[str, int]:
    """Split "cuda:1" into its kind and number; "cuda" is "cuda:0", as in TVM."""
    match = _DEVICE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('a device kind and number such as "cuda:1" or "cpu:0"')
    return match[1], int(match[2] or 0)


def _size_or_name(value: object) -> int | str:
    """Return the bytes in a size, or the text that must then name a memory."""
    expected = 'the name of a memory, or a size > 0 such as "16 GiB"'
    if isinstance(value, str) and not _is_size(value):
        if not value:
            raise ValueError(expected)
        return value
    try:
        return positive(parse_bytes)(value)
    except ValueError:
        raise ValueError(expected) from None


def _memory_name(value: object) -> str:
    """Accept a name that cannot be taken for a size."""
    if _is_size(value):
        raise ValueError("a name that is not also a size")
    return a_name(value)


def _is_size(value: object) -> bool:
    try:
        parse_bytes(value)
    except ValueError:
        return False
    return isinstance(value, str)


def _batch_sizes(value: object) -> tuple[int, ...]:
    expected = "a list of different numbers >= 1 such as [1, 2, 4]"
    return tuple(sorted(distinct(positive(a_count), expected)(value)))


def _transfers(value: object) -> tuple[tuple[int, int], ...]:
    """Accept a list of (size, duration) pairs with different sizes; in ascending order of size."""
    expected = 'a list of sizes, each once, with a duration, such as [["1 MiB", "90 us"]]'

    def pair(entry: object) -> tuple[int, int]:
        if not isinstance(entry, list) or len(entry) != 2:
            raise ValueError(expected)
        return positive(parse_bytes)(entry[0]), parse_duration(entry[1])

    pairs = list_of(pair, expected)(value)
    if len({size for size, _ in pairs}) < len(pairs):
        raise ValueError(expected)
    return tuple(sorted(pairs))


_WORD: Json = {"type": "string", "pattern": r"^\S+$"}
_WORDS: list[Json] = [_WORD, {"type": "integer"}, {"type": "boolean"}]
_ATTRIBUTE: Json = {
    "anyOf": [*_WORDS, {"type": "array", "minItems": 1, "items": {"anyOf": _WORDS}}]
}
_TARGET_SCHEMA: Json = {
    "anyOf": [
        {"type": "string", "pattern": r"\S"},
        {
            "type": "object",
            "properties": {"kind": _WORD},
            "required": ["kind"],
            "propertyNames": {"pattern": r"^\S+$"},
            "additionalProperties": _ATTRIBUTE,
        },
    ]
}
_ZERO: Json = {"pattern": "^[0.]+ ?([kMGTP]|[KMGT]i)?B$"}
_SIZE_OR_NAME: Json = {
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {"type": "string", "minLength": 1, "not": _ZERO},
    ]
}
_MEMORY_NAME: Json = {"type": "string", "minLength": 1, "not": size_schema(0)["anyOf"][1]}
_FLOPS: Json = {"anyOf": [{"type": "integer", "minimum": 1}, quantity("[kMGTP]?FLOP/s")]}
_PAIRS: Json = {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2}}


def _numbers(least: int) -> Json:
    items: Json = {"type": "integer", "minimum": least}
    return {"type": "array", "minItems": 1, "uniqueItems": True, "items": items}


Bandwidth = Annotated[
    int,
    kind(
        positive(parse_bandwidth),
        0,
        schema=quantity("(([kMGTP]|[KMGT]i)?B/s|[kMGTP]?bit/s)"),
    ),
]
"""Bytes per second, in text with the unit."""
Duration = Annotated[
    int, kind(parse_duration, 0, schema=quantity("(ns|us|µs|ms|s)", is_positive=False))
]
"""Nanoseconds, in text with the unit."""
MemorySize = Annotated[int, kind(positive(parse_bytes), 0, schema=size_schema(1))]
DeviceKind = Annotated[
    tuple[str, int], kind(_kind_and_index, ("", 0), schema={"type": "string", "minLength": 1})
]
Cores = Annotated[
    tuple[int, ...],
    kind(
        distinct(a_count, "a list of different core numbers such as [0, 1]"),
        (),
        schema=_numbers(0),
    ),
]


class Defaults(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What holds for all records."""

    memory_reserve: Annotated[Size, about("Taken off every memory.")] = 0


class MemoryEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    """A space that some devices address directly."""

    name: Annotated[
        str, kind(_memory_name, "", schema=_MEMORY_NAME), about("Not a text that is also a size.")
    ]
    size: Annotated[MemorySize, about("Capacity.")]
    host: Annotated[Text, about("Computer it sits in; absent: that of its devices.")] = ""


class DeviceEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    """A place that computes."""

    name: Name
    target: Annotated[
        str,
        kind(_target, "", schema=_TARGET_SCHEMA),
        about("A TVM target: its text, or an object with its kind and attributes."),
    ]
    device: Annotated[
        DeviceKind, about('Kind and number as TVM writes them: "cuda:1"; without a number it is 0.')
    ]
    memory: Annotated[
        int | str,
        kind(_size_or_name, "", schema=_SIZE_OR_NAME),
        about("The name of a memory, or the size of one of its own, called like the device."),
    ]
    cores: Annotated[Cores, about("Cores that a cpu device runs on.")] = ()
    host: Annotated[Text, about("Computer it sits in; absent: the one without a name.")] = ""
    flops_per_second: Annotated[
        int | None,
        kind(positive(parse_flops_per_second), None, schema=_FLOPS),
        about("Peak speed, for estimates."),
    ] = None
    memory_bytes_per_second: Annotated[
        Bandwidth | None, about("Peak bandwidth of its memory, for estimates.")
    ] = field(default=None, name="memory_bandwidth")
    copy_engines: Annotated[
        int | None,
        one_of((0, 1, 2), None, "0, 1 or 2"),
        about(
            "How many copies may touch its memory at once: 0: none while it runs, a copy occupies "
            "the device (of two CPUs of a host the one that gets the value); 1: one; 2: one in and "
            "one out. Absent: only the links limit."
        ),
    ] = None
    batch_sizes: Annotated[
        tuple[int, ...],
        kind(_batch_sizes, (1,), schema=_numbers(1)),
        about("How many items it can run as one batch of a task."),
    ] = (1,)
    launch_ns: Annotated[Duration, about("Fixed time to start one task, for estimates.")] = field(
        default=0, name="launch"
    )
    model: Annotated[Text, about("For people only.")] = ""
    part: Annotated[
        Count,
        about(
            "Which of several devices on one GPU: those of different parts run at once, each with "
            "a queue of its own."
        ),
    ] = 0


class LinkEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    """A directed connection of two memories."""

    src: Annotated[Name, about("A memory, or a device, which stands for its memory.")]
    dst: Name
    bytes_per_second: Bandwidth = field(name="bandwidth")
    latency_ns: Duration = field(name="latency")
    name: Annotated[Name, about('Default: "SRC->DST".')] | None = None
    channel: (
        Annotated[
            Name,
            about("Links of one channel are never used at once. Default: the link's name."),
        ]
        | None
    ) = None
    bidirectional: Annotated[
        bool,
        about(
            "Adds the same link the other way round; it has a channel of its own unless one is "
            "named."
        ),
    ] = False
    transfer_times: Annotated[
        tuple[tuple[int, int], ...],
        kind(_transfers, (), schema=_PAIRS),
        about("Transfers that were timed: size, and time with the latency; linear between."),
    ] = ()
    measured: Annotated[
        tuple[tuple[int, int], ...],
        kind(_transfers, (), schema=_PAIRS),
        about(
            "As transfer_times, without the latency: the form of older files, no longer written."
        ),
    ] = ()


class ClusterFile(Struct, forbid_unknown_fields=True, kw_only=True):
    """A machine that a network is placed on: memories, devices and directed links."""

    schema: SchemaLink = field(default="", name="$schema")
    schema_version: Annotated[Literal[1], version(SCHEMA_VERSION)]
    name: Name
    description: Annotated[Text, about("For people only.")] = ""
    defaults: Defaults = Defaults()
    memories: tuple[MemoryEntry, ...] = ()
    devices: Annotated[
        tuple[DeviceEntry, ...],
        Meta(min_length=1, extra={"expected": "a list of at least one device"}),
    ]
    links: tuple[LinkEntry, ...] = ()
    host: (
        Annotated[
            Name,
            about("Memory where inputs arrive and outputs are read; absent: planning only."),
        ]
        | None
    ) = None
    congestion: Annotated[
        str,
        one_of(CONGESTION_MODES, "channel"),
        about(
            "Which copies exclude each other: none; those on one channel; those out of one memory "
            "or into one; all."
        ),
    ] = "channel"
