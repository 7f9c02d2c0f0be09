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
    SchemaLink,
    Size,
    Text,
    Texts,
    a_count,
    a_name,
    a_number,
    about,
    kind,
    list_of,
    one_of,
    version,
)
from heteroplace.model.routed.capacities import OVERFLOWS
from heteroplace.model.units import MAX_INTEGER

SCHEMA_VERSION = 1
MAX_MS = 2.0**63 / 1e6 - 1
"""Of times, so that they are below 2^63 ns; at that size whole numbers have gaps of some ns."""


def _time_ns(value: object) -> int | None:
    try:
        return None if value is None else a_count(value)
    except ValueError as fault:
        raise ValueError(f"{fault}, or null where the device cannot run the task") from None


def _time_ms(value: object) -> float | None:
    try:
        if value is None or a_number(value) <= MAX_MS:
            return value  # type: ignore[return-value]
        raise ValueError(f"a number >= 0, at most {MAX_MS:.0f}")
    except ValueError as fault:
        raise ValueError(f"{fault}, or null where the device cannot run the task") from None


_OR_NULL: list[Json] = [{"type": "number", "minimum": 0}, {"type": "null"}]
Names = Annotated[tuple[Name, ...], kind(list_of(a_name, "a list of names"), ())]
TimeNs = Annotated[Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | None, kind(_time_ns, None)]
TimeMs = Annotated[int | float | None, kind(_time_ms, None, schema={"anyOf": _OR_NULL})]


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
        kind(
            list_of(list_of(a_count, ""), "a list of lists of whole numbers >= 0"),
            (),
            schema={
                "type": "array",
                "items": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            },
        ),
        about("For each branch the numbers of rows that its tasks are compiled for, ascending."),
    ]
    overflow: (
        Annotated[
            Text,
            one_of(OVERFLOWS, "rounds"),
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


class TensorEntry(Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """What a task makes, or an input of the model."""

    producer: (
        Annotated[Name, about("The task that makes it; absent: an input of the model.")] | UnsetType
    ) = UNSET
    name: Annotated[Name, about('Default: "PRODUCER.INDEX"; needed for inputs.')] | UnsetType = (
        UNSET
    )
    consumers: (
        Annotated[
            tuple[Name, ...],
            kind(list_of(a_name, "a list of task names"), ()),
            about("The tasks that read it."),
        ]
        | UnsetType
    ) = UNSET
    shape: (
        Annotated[tuple[Count, ...], kind(list_of(a_count, "a list of whole numbers >= 0"), ())]
        | UnsetType
    ) = UNSET
    dtype: Text | UnsetType = UNSET
    bytes: Annotated[Size, about("Default: from shape and dtype.")] | UnsetType = UNSET
    shared: (
        Annotated[bool, about("One value for all items in a memory, not one for each.")] | UnsetType
    ) = UNSET
    buffer: Annotated[Name, about("Routed buffer in which its rows lie.")] | UnsetType = UNSET


_ONE_OF_TIMES: Json = {"not": {"required": ["times_ns", "times_ms"]}}
_NAME_AND_SIZE: Json = {
    "allOf": [
        {"anyOf": [{"required": ["name"]}, {"required": ["producer"]}]},
        {
            "anyOf": [
                {"required": ["bytes"]},
                {"required": ["shape", "dtype"], "properties": {"dtype": {"minLength": 1}}},
            ]
        },
    ]
}


class GraphDescription(Struct, forbid_unknown_fields=True, kw_only=True):
    """A task graph, with the run times of its tasks if they are known."""

    schema: SchemaLink | UnsetType = field(default=UNSET, name="$schema")
    schema_version: Annotated[Literal[1], version(SCHEMA_VERSION)]
    name: Name
    description: Annotated[Text, about("For people only.")] | UnsetType = UNSET
    tasks: tuple[Annotated[TaskEntry, Meta(extra_json_schema=_ONE_OF_TIMES)], ...]
    tensors: tuple[Annotated[TensorEntry, Meta(extra_json_schema=_NAME_AND_SIZE)], ...]
    outputs: Annotated[
        tuple[Name, ...],
        kind(list_of(a_name, "a list of tensor names"), ()),
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
