"""Read and write how a model is shared by several devices, as JSON: a solution and its strategy.

The solution holds graph, cluster, costs and plan; the strategy says how the graph is made of a
model, so that the plan can be compiled with it later.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import Struct

from heteroplace.files.fields.fields import Count
from heteroplace.files.file_versions import Versioned, read_text
from heteroplace.files.output import write_text
from heteroplace.files.solution_file import solution_from_json, solution_to_json
from heteroplace.model.solution import Solution

SHARDING_VERSION = 1
"""Version of the JSON form."""


class Told(Struct, frozen=True):
    """How the graph of a solution was made of a model."""

    batch: Count
    """Rows of the whole batch."""
    degrees: tuple[Count, Count, Count, Count]
    """Replicas, lanes, stages and microbatches."""
    schedule: str
    zero: Count
    recompute: Count
    cuts: tuple[Count, ...] | None
    """The first layer of each stage but the first one; None: equal stages."""
    optimizer: str | None
    """None: inference."""
    loss: str
    prediction: Count | None
    """Position of the output that is trained; None: the only one."""
    uneven: bool
    weight_gradients: Literal["each", "end"] = "each"
    """When they are summed over microbatches: as "each" is computed, or at the "end"."""


@dataclass(frozen=True)
class ShardingRecord:
    """What a file holds."""

    told: Told
    solution: Solution


def told_text(description: Told) -> str:
    """Return how a model is shared as one line.

    >>> told_text(Told(64, (2, 1, 2, 4), "1f1b", 0, 0, None, None, "mse", None, False))
    'batch 64, degrees 2/1/2/4, schedule 1f1b, inference'
    """
    parts = [f"batch {description.batch}", f"degrees {'/'.join(map(str, description.degrees))}"]
    parts.append(f"schedule {description.schedule}")
    parts += [f"zero {description.zero}"] if description.zero else []
    parts += [f"recompute {description.recompute}"] if description.recompute else []
    parts += [f"cuts {','.join(map(str, description.cuts))}"] if description.cuts else []
    at_end = description.weight_gradients == "end"
    parts += ["weight gradients at the end"] if at_end else []
    parts.append(
        "inference"
        if description.optimizer is None
        else f"{description.loss}, {description.optimizer}"
    )
    return ", ".join(parts)


def sharding_to_json(record: ShardingRecord) -> str:
    """Return the JSON text."""
    description = msgspec.to_builtins(record.told)
    solution = json.loads(solution_to_json(record.solution))
    description = {"sharding_version": SHARDING_VERSION, **description, "solution": solution}
    return json.dumps(description, allow_nan=False)


def save_sharding(record: ShardingRecord, path: str | os.PathLike[str]) -> None:
    """Write a file; raises OSError if it cannot be written."""
    write_text(sharding_to_json(record) + "\n", path)


def load_sharding(path: str | os.PathLike[str]) -> ShardingRecord:
    """Return what a file holds; raises as `sharding_from_json`, or if it cannot be read."""
    return sharding_from_json(read_text(path), os.fspath(path))


def sharding_from_json(text: str, source: str = "sharding") -> ShardingRecord:
    """Read the JSON text.

    Raises
    ------
    PlanError
        Another version, or a field is missing or wrong. (Faults inside graph, cluster, costs and
        plan are raised as their own error types.)
    """
    what = Versioned("sharding", SHARDING_VERSION, "a plan that `heteroplace shard` wrote",
                     "run `heteroplace shard` again")  # fmt: skip
    with what.read(text, source) as value:
        description = msgspec.convert(_told_fields(value), Told)
        solution = json.dumps(value["solution"])
    return ShardingRecord(description, solution_from_json(solution, f"{source}: solution"))


def _told_fields(value: Mapping[str, object]) -> dict[str, object]:
    """Those of `Told`; older files lack what has a default."""
    names, defaults = Told.__struct_fields__, Told.__struct_defaults__
    optional = names[len(names) - len(defaults) :]
    return {name: value[name] for name in names if name in value or name not in optional}
