"""The keywords of `shard` and `Shard` as type checkers read them.

`ShardOptions` declares the options. A test compares names and types with them. Nothing here is
loaded when a program runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypedDict

from heteroplace.parts.parallel.transforms.degrees import Degrees


class ShardKeywords(TypedDict, total=False):
    """Options of `shard`; `batch` is always needed. Those that are left out have their defaults."""

    batch: int
    degrees: Degrees | str | tuple[int, ...]
    data: int
    tensor: int
    pipeline: int
    micro_batches: int
    schedule: str
    zero: int
    recompute: int
    cuts: tuple[int, ...] | None
    devices: tuple[str, ...] | None
    optimizer: str | None
    loss: str
    prediction: int | None
    weight_gradients: str
    costs: str
    store: str | os.PathLike[str] | None
    run_best: int | None
    uneven: bool
    progress: Callable[[str], None] | None
