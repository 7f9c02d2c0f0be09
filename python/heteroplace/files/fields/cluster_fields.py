"""The fields of cluster.json: their units, defaults and JSON Schema; how each is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from heteroplace.files.fields.fields import (
    SIZE_PATTERN,
    Count,
    Json,
    Name,
    PositiveCount,
    PositiveSize,
    SchemaLink,
    Size,
    Text,
    about,
    one_of,
    quantity,
)
from heteroplace.model.cluster import CONGESTION_MODES

SCHEMA_VERSION = 1
_EXPECTED_TARGET = (
    'a TVM target such as "llvm -mcpu=native" or {"kind": "cuda", "arch": "sm_75"} '
    "(values: text without spaces, whole numbers, true or false, lists of these)"
)
_DEVICE = re.compile(r"(?s)(.+?)(?::([0-9]+))?")
_DIFFERENT: Json = {"uniqueItems": True}
_WITH_KIND: Json = {"required": ["kind"], "properties": {"kind": {"type": "string"}}}
_Word = Annotated[str, Meta(pattern=r"^\S+$(?!\n)")]
_Attribute = _Word | int | bool | Annotated[tuple[_Word | int | bool, ...], Meta(min_length=1)]
Target = Annotated[
    Annotated[str, Meta(pattern=r"\S")]
    | Annotated[dict[_Word, _Attribute], Meta(extra_json_schema=_WITH_KIND)],
    Meta(title=_EXPECTED_TARGET),
]
Bandwidth = Annotated[
    str,
    Meta(
        pattern=quantity("(([kMGTP]|[KMGT]i)?B/s|[kMGTP]?bit/s)"),
        title='a bandwidth > 0 with its unit, such as "44.26 Gbit/s" or "5.5 GB/s"',
    ),
]
Duration = Annotated[
    str,
    Meta(
        pattern=quantity("(ns|us|µs|ms|s)", is_positive=False),
        title='a duration with its unit (ns, us, ms, s), such as "5 us"',
    ),
]
DeviceKind = Annotated[
    str, Meta(min_length=1, title='a device kind and number such as "cuda:1" or "cpu:0"')
]
Speed = Annotated[
    PositiveCount | Annotated[str, Meta(pattern=quantity("[kMGTP]?FLOP/s"))],
    Meta(title='a speed > 0 such as "14.1 TFLOP/s", or a number of operations per second'),
]
MemoryName = Annotated[
    str,
    Meta(min_length=1, pattern=f"^(?!{SIZE_PATTERN[1:]})", title="a name that is not also a size"),
]
SizeOrName = Annotated[
    PositiveCount | Annotated[str, Meta(min_length=1, pattern="^(?![0.]+ ?([kMGTP]|[KMGT]i)?B$)")],
    Meta(title='the name of a memory, or a size > 0 such as "16 GiB"'),
]
Transfers = tuple[tuple[PositiveSize, Duration], ...]


class Defaults(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What holds for all records."""

    memory_reserve: Annotated[Size, about("Taken off every memory.")] = 0


class MemoryEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    """A space that some devices address directly."""

    name: Annotated[MemoryName, about("Not a text that is also a size.")]
    size: Annotated[PositiveSize, about("Capacity.")]
    host: Annotated[Text, about("Computer it sits in; absent: that of its devices.")] = ""


class DeviceEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    """A place that computes."""

    name: Name
    target: Annotated[
        Target,
        about("A TVM target: its text, or an object with its kind and attributes."),
    ]
    device: Annotated[
        DeviceKind, about('Kind and number as TVM writes them: "cuda:1"; without a number it is 0.')
    ]
    memory: Annotated[
        SizeOrName,
        about("The name of a memory, or the size of one of its own, called like the device."),
    ]
    cores: Annotated[
        tuple[Count, ...],
        Meta(
            min_length=1,
            extra_json_schema=_DIFFERENT,
            title="a list of different core numbers such as [0, 1]",
        ),
        about("Cores that a cpu device runs on."),
    ] = ()
    host: Annotated[Text, about("Computer it sits in; absent: the one without a name.")] = ""
    flops_per_second: Annotated[Speed, about("Peak speed, for estimates.")] | UnsetType = UNSET
    memory_bandwidth: (
        Annotated[Bandwidth, about("Peak bandwidth of its memory, for estimates.")] | UnsetType
    ) = UNSET
    copy_engines: (
        Annotated[
            int,
            Meta(ge=0, le=2, title="0, 1 or 2"),
            about(
                "How many copies may touch its memory at once: 0: none while it runs, a copy "
                "occupies the device (of two CPUs of a host the one that gets the value); 1: one; "
                "2: one in and one out. Absent: only the links limit."
            ),
        ]
        | UnsetType
    ) = UNSET
    batch_sizes: Annotated[
        tuple[PositiveCount, ...],
        Meta(
            min_length=1,
            extra_json_schema=_DIFFERENT,
            title="a list of different numbers >= 1 such as [1, 2, 4]",
        ),
        about("How many items it can run as one batch of a task."),
    ] = (1,)
    launch: Annotated[Duration, about("Fixed time to start one task, for estimates.")] = "0 ns"
    model: Annotated[Text, about("For people only.")] = ""
    part: Annotated[
        Count,
        about(
            "Which of several devices on one GPU: those of different parts run at once, each with "
            "a queue of its own."
        ),
    ] = 0

    def __post_init__(self) -> None:
        for numbers in (self.cores, self.batch_sizes):
            if len(set(numbers)) < len(numbers):
                raise ValueError("expected different numbers")


class LinkEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    """A directed connection of two memories."""

    src: Annotated[Name, about("A memory, or a device, which stands for its memory.")]
    dst: Name
    bandwidth: Bandwidth
    latency: Duration
    name: Annotated[Name, about('Default: "SRC->DST".')] | UnsetType = UNSET
    channel: (
        Annotated[
            Name,
            about("Links of one channel are never used at once. Default: the link's name."),
        ]
        | UnsetType
    ) = UNSET
    bidirectional: Annotated[
        bool,
        about(
            "Adds the same link the other way round; it has a channel of its own unless one is "
            "named."
        ),
    ] = False
    transfer_times: Annotated[
        Transfers,
        about("Transfers that were timed: size, and time with the latency; linear between."),
    ] = ()
    measured: Annotated[
        Transfers,
        about(
            "As transfer_times, without the latency: the form of older files, no longer written."
        ),
    ] = ()


class ClusterFile(Struct, forbid_unknown_fields=True, kw_only=True):
    """A machine that a network is placed on: memories, devices and directed links."""

    schema: SchemaLink = field(default="", name="$schema")
    schema_version: Literal[1]
    name: Name
    description: Annotated[Text, about("For people only.")] = ""
    defaults: Defaults = Defaults()
    memories: tuple[MemoryEntry, ...] = ()
    devices: Annotated[
        tuple[DeviceEntry, ...], Meta(min_length=1, title="a list of at least one device")
    ]
    links: tuple[LinkEntry, ...] = ()
    host: (
        Annotated[
            Name,
            about("Memory where inputs arrive and outputs are read; absent: planning only."),
        ]
        | UnsetType
    ) = UNSET
    congestion: Annotated[
        str,
        one_of(CONGESTION_MODES),
        about(
            "Which copies exclude each other: none; those on one channel; those out of one memory "
            "or into one; all."
        ),
    ] = "channel"


def positive(read: Callable[[object], int]) -> Callable[[object], int]:
    """Return `read` with 0 refused: small quantities are rounded to it."""

    def read_positive(value: object) -> int:
        number = read(value)
        if number <= 0:
            raise ValueError("more than 0")
        return number

    return read_positive


def kind_and_index(value: object) -> tuple[str, int]:
    """Split "cuda:1" into its kind and number; "cuda" is "cuda:0", as in TVM."""
    match = _DEVICE.fullmatch(str(value))
    assert match is not None  # of a name
    return match[1], int(match[2] or 0)


def target_text(value: object) -> str:
    """Return a TVM target string; a dict becomes "KIND -key=value ..." with the keys sorted."""
    if not isinstance(value, dict):
        return str(value)
    if not isinstance(value.get("kind"), str):
        raise ValueError(_EXPECTED_TARGET)
    words = [value["kind"]]
    for key in sorted(value.keys() - {"kind"}):
        elements = value[key] if isinstance(value[key], tuple) else (value[key],)
        texts = (each if isinstance(each, str) else str(int(each)) for each in elements)
        words.append(f"-{key}={','.join(texts)}")
    return " ".join(words)


def is_size(text: str) -> bool:
    """Tell whether the memory of a device is a size, not a name."""
    return re.search(SIZE_PATTERN, text) is not None
