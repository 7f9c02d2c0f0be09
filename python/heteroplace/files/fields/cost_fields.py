"""The fields of a cost table's file: their units, defaults and JSON Schema."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from heteroplace.files.fields.fields import (
    Count,
    Json,
    Number,
    SchemaLink,
    Text,
    Texts,
    about,
)
from heteroplace.model.collectives import CollectiveCosts
from heteroplace.model.cost import SOURCES_WITH_TIME, SOURCES_WITHOUT_TIME

SCHEMA_VERSION = 3
SOURCES = {
    1: ("measured", "estimated", "given", "unsupported", "unknown"),
    2: (*SOURCES_WITH_TIME, "unsupported", "unknown"),
    3: (*SOURCES_WITH_TIME, *SOURCES_WITHOUT_TIME),
}
"""What `source` may be, by version of the file."""
_BATCH = Meta(
    pattern=r"^([2-9]|[1-9][0-9]{1,8})$(?!\n)", title="a number of items above 1 as the key"
)
_ALL_SOURCES = [*SOURCES[SCHEMA_VERSION], "estimated"]
_TIMED: Json = {"properties": {"source": {"enum": [*SOURCES_WITH_TIME, "estimated"]}}}
_NS_IF_TIMED: Json = {
    "if": _TIMED,
    "then": {"required": ["ns"]},
    "else": {"not": {"required": ["ns"]}},
}


class CostEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    """The cost of a task on a device."""

    source: Annotated[
        Text, Meta(extra_json_schema={"enum": _ALL_SOURCES}), about('"estimated": version 1 only.')
    ]
    ns: (
        Annotated[Count, about("Run time; present if and only if the source has one.")] | UnsetType
    ) = UNSET
    spread_ns: Annotated[Count, about("Half of the interquartile range.")] = 0
    reason: Text = ""
    error: (
        Annotated[
            Number, about("Relative error to expect; that of a measured time is spread over time.")
        ]
        | UnsetType
    ) = UNSET


class RowEntry(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What the costs of a task depend on."""

    op: Annotated[Text, about("The ops inside, joined by +.")] = ""
    flops: Count = 0
    weight_bytes: Count = 0
    reads: Annotated[
        Texts, about("Types of what it reads, sorted; a size where none is known.")
    ] = ()
    writes: Annotated[Texts, about("Types of what it makes.")] = ()


class ColumnEntry(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What the costs on a device depend on; the last three only where they are predicted."""

    kind: Text = ""
    target: Annotated[Text, about("TVM target string.")] = ""
    num_cores: Annotated[Count, about("Of a CPU device.")] = 0
    model: Annotated[Text, about("What is printed on the box.")] = ""
    host: Annotated[Text, about("Empty where the model is known.")] = ""
    flops_per_second: Annotated[Count, about("Peak speed.")] | UnsetType = UNSET
    memory_bytes_per_second: (
        Annotated[Count, about("Peak bandwidth of its memory.")] | UnsetType
    ) = UNSET
    launch_ns: Annotated[Count, about("Fixed time to start a task.")] = 0


class CollectiveEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    """What a collective takes, linear in the bytes of its whole tensor."""

    kind: Annotated[Text, about('E.g. "all_reduce".')]
    devices: Annotated[Count, about("How many take part.")]
    ns_per_byte: Number
    ns: Annotated[Number, about("Of no bytes.")]


def collectives_to_json(costs: CollectiveCosts) -> list[dict[str, object]]:
    """Return fitted times of collectives as a value for `json.dump`."""
    names = ("kind", "devices", "ns_per_byte", "ns")
    return [dict(zip(names, fit, strict=True)) for fit in costs.fits]


def collectives_of(
    entries: tuple[CollectiveEntry, ...] | UnsetType, in_updates: tuple[str, ...] = ()
) -> CollectiveCosts | None:
    """Return what `collectives_to_json` was given; None: the file has none."""
    if entries is UNSET and not in_updates:
        return None
    return CollectiveCosts(
        tuple((each.kind, each.devices, each.ns_per_byte, each.ns) for each in entries or ()),
        frozenset(in_updates),
    )


Entries = dict[str, dict[str, Annotated[CostEntry, Meta(extra_json_schema=_NS_IF_TIMED)]]]
"""By task name and device name."""


class CostsFile(Struct, forbid_unknown_fields=True, kw_only=True):
    """The cost of every task on every device."""

    schema: SchemaLink = field(default="", name="$schema")
    schema_version: Literal[1, 2, 3]
    graph: Annotated[Text, about("Name of the graph; for people.")] = ""
    cluster: Annotated[Text, about("Name of the cluster; for people.")] = ""
    graph_digest: Annotated[Text, about("In versions 1 and 2 only: the graph it is for.")] = ""
    cluster_digest: Annotated[Text, about("In versions 1 and 2 only: the cluster it is for.")] = ""
    rows: Annotated[
        dict[str, RowEntry], about("By task name: what its costs depend on; since version 3.")
    ] = {}
    columns: Annotated[
        dict[str, ColumnEntry],
        about("By device name: what costs depend on; since version 3."),
    ] = {}
    costs: Annotated[Entries, about("Of one item; by task name and device name.")]
    batch_costs: Annotated[
        dict[Annotated[str, _BATCH], Entries],
        about("Of several items run together; by their number, which is above 1."),
    ] = {}
    collectives: (
        Annotated[
            tuple[CollectiveEntry, ...],
            about("Times of collectives that were measured; absent: those of rings over links."),
        ]
        | UnsetType
    ) = UNSET
    sums_in_updates: Annotated[
        tuple[Text, ...],
        about("Collectives that take nothing by themselves: updates add up what members bring."),
    ] = ()
