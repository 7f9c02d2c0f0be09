"""The fields of a graph file: their units, defaults and JSON Schema; how each is read.

Where a field may be a number or text, a size is converted when the graph is made.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from heteroplace.files.fields.fields import (
    Count,
    Json,
    Name,
    Names,
    SchemaLink,
    Size,
    Text,
    Texts,
    about,
    one_of,
)
from heteroplace.model.routed.capacities import OVERFLOWS

SCHEMA_VERSION = 1
MAX_MS = 2.0**63 / 1e6 - 1
"""Of times, so that they are below 2^63 ns; at that size whole numbers have gaps of some ns."""
_CANNOT_RUN = "or null where the device cannot run the task"
TimeNs = Annotated[Count | None, Meta(title=f"a whole number >= 0, {_CANNOT_RUN}")]
TimeMs = Annotated[
    Annotated[int, Meta(ge=0, le=int(MAX_MS))] | Annotated[float, Meta(ge=0, le=MAX_MS)] | None,
    Meta(title=f"a number >= 0, at most {MAX_MS:.0f}, {_CANNOT_RUN}"),
]


class BranchEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    """A branch of a router."""

    router: Name
    branch: Count


class RouterEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    """What decides in each run how many cells each of its branches has."""

    name: Name
    loads: Annotated[Name, about("Tensor int32[branches]: the cells of each branch.")]
    cells: Annotated[Count, about("Number of cells; 1: a cell is a whole tensor.")]
    top_k: Annotated[Count, about("Most branches that a cell goes to.")]
    capacities: Annotated[
        tuple[tuple[Count, ...], ...],
        about("For each branch the numbers of rows that its tasks are compiled for, ascending."),
    ]
    overflow: (
        Annotated[
            Text,
            one_of(OVERFLOWS),
            about('What becomes of cells beyond the largest capacity. Default: "rounds".'),
        ]
        | UnsetType
    ) = UNSET
    quantum: (
        Annotated[
            Count,
            about("Rows of a branch begin at multiples of it in a routed buffer. Default: 1."),
        ]
        | UnsetType
    ) = UNSET
    parent: Annotated[BranchEntry, about("Branch that it is in.")] | UnsetType = UNSET


class TaskEntry(Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A group of ops that is placed as one unit."""

    name: Name
    op: (
        Annotated[
            Text,
            about('What it computes, e.g. "nn.conv2d+nn.relu"; for people. Default: the name.'),
        ]
        | UnsetType
    ) = UNSET
    members: Annotated[Texts, about("Names of the ops inside.")] | UnsetType = UNSET
    flops: Annotated[Count, about("Floating point operations of one run.")] | UnsetType = UNSET
    weight_bytes: Annotated[Size, about("Constants it reads.")] | UnsetType = UNSET
    workspace_bytes: Annotated[Size, about("Scratch memory while it runs.")] | UnsetType = UNSET
    devices: (
        Annotated[Names, about("Names of the devices it may run on; absent: any.")] | UnsetType
    ) = UNSET
    together: (
        Annotated[Name, about("Colocation group: its tasks must be on one device.")] | UnsetType
    ) = UNSET
    adds: (
        Annotated[bool, about("Runs for several items add up in its shared outputs.")] | UnsetType
    ) = UNSET
    weights: (
        Annotated[
            dict[str, Size],
            about("Bytes by name of constants that tasks share: once in a memory."),
        ]
        | UnsetType
    ) = UNSET
    branch: (
        Annotated[BranchEntry, about("Branch that it is in; absent: it is run in every run.")]
        | UnsetType
    ) = UNSET
    times_ns: (
        Annotated[
            dict[str, TimeNs], about("Run time by device name; null: the device cannot run it.")
        ]
        | UnsetType
    ) = UNSET
    times_ms: (
        Annotated[dict[str, TimeMs], about("As times_ns, in milliseconds; one of the two.")]
        | UnsetType
    ) = UNSET

    def __post_init__(self) -> None:
        if self.times_ns is not UNSET and self.times_ms is not UNSET:
            raise ValueError("has both times_ns and times_ms")


class TensorEntry(Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """What a task makes, or an input of the model."""

    producer: (
        Annotated[Name, about("The task that makes it; absent: an input of the model.")] | UnsetType
    ) = UNSET
    name: Annotated[Name, about('Default: "PRODUCER.INDEX"; needed for inputs.')] | UnsetType = (
        UNSET
    )
    consumers: Annotated[Names, about("The tasks that read it.")] | UnsetType = UNSET
    shape: tuple[Count, ...] | UnsetType = UNSET
    dtype: Text | UnsetType = UNSET
    bytes: Annotated[Size, about("Default: from shape and dtype.")] | UnsetType = UNSET
    shared: (
        Annotated[bool, about("One value for all items in a memory, not one for each.")] | UnsetType
    ) = UNSET
    buffer: Annotated[Name, about("Routed buffer in which its rows lie.")] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.producer is UNSET and self.name is UNSET:
            raise ValueError("has neither a name nor a producer")
        if self.bytes is UNSET and (self.shape is UNSET or not self.dtype):
            raise ValueError("has no size")


# As `__post_init__` of the entries has them.
_ONE_OF_TIMES: Json = {
    "allOf": [
        {"not": {"required": ["times_ns", "times_ms"]}, "title": 'one of "times_ns" and "times_ms"'}
    ]
}
_NAME_AND_SIZE: Json = {
    "allOf": [
        {
            "anyOf": [{"required": ["name"]}, {"required": ["producer"]}],
            "title": 'a "name" or a "producer"',
        },
        {
            "anyOf": [
                {"required": ["bytes"]},
                {"required": ["shape", "dtype"], "properties": {"dtype": {"minLength": 1}}},
            ],
            "title": '"bytes", or both "shape" and "dtype"',
        },
    ]
}


class GraphDescription(Struct, forbid_unknown_fields=True, kw_only=True):
    """A task graph, with the run times of its tasks if they are known."""

    schema: SchemaLink | UnsetType = field(default=UNSET, name="$schema")
    schema_version: Literal[1]
    name: Name
    description: Annotated[Text, about("For people only.")] | UnsetType = UNSET
    tasks: tuple[Annotated[TaskEntry, Meta(extra_json_schema=_ONE_OF_TIMES)], ...]
    tensors: tuple[Annotated[TensorEntry, Meta(extra_json_schema=_NAME_AND_SIZE)], ...]
    outputs: Annotated[
        Names,
        about("Names of the tensors that the model returns, in order; may repeat."),
    ]
    updates: (
        Annotated[
            dict[str, Name],
            about("State: for each such input the tensor that replaces it, from run to run."),
        ]
        | UnsetType
    ) = UNSET
    buffers: (
        Annotated[dict[str, Size], about("Bytes of routed buffers: once in a memory, whole.")]
        | UnsetType
    ) = UNSET
    routers: tuple[RouterEntry, ...] | UnsetType = UNSET
