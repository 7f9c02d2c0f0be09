"""The keywords of placing as type checkers read them: what `HeteroPlace`, `place`, `compile` and
`build` take as options.

`PlaceOptions` and `SolveOptions` declare the options. A test compares names and types with them.
Nothing here is loaded when a program runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

from heteroplace.model.cluster import Cluster
from heteroplace.place_options import Arrays, CostSource
from heteroplace.solve.problem import Progress


class PlaceKeywords(TypedDict, total=False):
    """Options of `HeteroPlace`. Those that are left out have their defaults."""

    solver: str
    effort: str
    costs: CostSource
    missing: str
    store: str | os.PathLike[str] | None
    kernels: str
    tuned: str
    cublas: str
    cudnn: str
    precision: str | Mapping[str, str]
    max_error: float
    verify_inputs: Arrays | Sequence[Arrays]
    state: str | Mapping[str, str]
    max_sessions: int
    pin: Mapping[str, str]
    exclude: Sequence[str]
    inputs: Arrays | None
    no_split: Sequence[str]
    layers: Mapping[str, str]
    max_memory: Mapping[str, str | int]
    plan_in: str | os.PathLike[str] | None
    routes: str | os.PathLike[str] | None
    weights_budget: int | str | None
    verify: str
    objective: str
    time_limit: float
    iterations: int | None
    items: int
    seed: int
    threads: int
    coarsening: str
    engine: str
    list_parts: str
    min_gain_ratio: float
    progress: Callable[[str], None] | None
    solver_progress: Progress | None


class SearchKeywords(TypedDict, total=False):
    """Options of `PlaceBranches`, which are some of those of `HeteroPlace`."""

    time_limit: float
    seed: int
    engine: str


class ReplanKeywords(PlaceKeywords, total=False):
    """Options of a new plan for a loaded file, and its cluster; "local" is this machine."""

    cluster: Cluster | str | os.PathLike[str]
