"""Profiles of route decisions as JSON: counts, so that `heteroplace routes merge` may add them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Struct, field

from heteroplace.errors import RoutingError
from heteroplace.files.faults import Faults, JsonPath, show
from heteroplace.files.fields.fields import (
    Count,
    Name,
    PositiveCount,
    SchemaLink,
    Text,
    about,
)
from heteroplace.files.reader import read_json, read_struct, write_json
from heteroplace.model.routed.route_profile import (
    Histogram,
    RouteProfile,
    RouterProfile,
    RouterShape,
    Transition,
    following_routers,
)

SCHEMA_VERSION = 1
Row = tuple[Count, Count, Count, PositiveCount]
LoadCounts = tuple[tuple[Count, PositiveCount], ...]
"""Pairs (load, in how many runs)."""


class ActiveSet(Struct, forbid_unknown_fields=True, kw_only=True):
    """How often just these branches had cells."""

    branches: Annotated[tuple[Count, ...], about("Ascending.")]
    runs: PositiveCount


class ProfiledRouter(Struct, forbid_unknown_fields=True, kw_only=True):
    """The decisions of one router, counted."""

    name: Name
    cells: PositiveCount
    branches: PositiveCount
    runs: Count
    loads: Annotated[
        tuple[LoadCounts, ...], about("For each branch its histogram: [load, in how many runs].")
    ]
    active_sets: tuple[ActiveSet, ...]


class TransitionEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    """How cells go from the branches of one router to those of the next one."""

    src: Annotated[Name, about("Router.")] = field(name="from")
    dst: Annotated[Name, about("The next router of as many cells.")] = field(name="to")
    runs: PositiveCount
    cells: Annotated[
        tuple[Row, ...],
        about("[branch, next branch, next branches that such a cell takes, cells in all runs]."),
    ]


class RouteProfileFile(Struct, forbid_unknown_fields=True, kw_only=True):
    """How often each route decision of a model was made."""

    schema: SchemaLink = field(default="", name="$schema")
    schema_version: Literal[1]
    model: Annotated[Text, about("Digest of the model.")]
    profiled_routers: tuple[ProfiledRouter, ...]
    transitions: tuple[TransitionEntry, ...] = ()


def save_route_profile(profile: RouteProfile, path: str | os.PathLike[str]) -> None:
    """Write a profile so that `load_route_profile` returns an equal one; atomic.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    write_json(route_profile_to_json(profile), path)


def load_route_profile(path: str | os.PathLike[str]) -> RouteProfile:
    """Return the profile in a file; raises as `route_profile_from_json`, or if it is unreadable."""
    return route_profile_from_json(read_json(path, RoutingError), os.fspath(path))


def route_profile_to_json(profile: RouteProfile) -> dict[str, object]:
    """Return a profile as a value for `json.dump`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": profile.model_digest,
        "profiled_routers": [_router_to_json(router) for router in profile.routers],
        "transitions": [
            {
                "from": each.src,
                "to": each.dst,
                "runs": each.num_runs,
                "cells": [list(row) for row in each.counts],
            }
            for each in profile.transitions
        ],
    }


def route_profile_from_json(value: object, source: str = "profile") -> RouteProfile:
    """Return the profile that a parsed JSON value describes.

    Raises
    ------
    RoutingError
        It has faults; all are named, with their JSON paths.
    """
    file, faults = read_struct(value, RouteProfileFile, source, RoutingError)
    names: dict[str, int] = {}
    for index, router in enumerate(file.profiled_routers):
        if names.setdefault(router.name, index) != index:
            faults.add(("profiled_routers", index, "name"), f"{show(router.name)} occurs twice")
        _check_router(router, ("profiled_routers", index), faults)
    _check_transitions(file, names, faults)
    faults.check()
    return RouteProfile(
        file.model,
        tuple(_router(entry) for entry in file.profiled_routers),
        tuple(
            Transition(entry.src, entry.dst, entry.runs, entry.cells) for entry in file.transitions
        ),
    )


def _router_to_json(router: RouterProfile) -> dict[str, object]:
    return {
        "name": router.name,
        "cells": router.num_cells,
        "branches": router.num_branches,
        "runs": router.num_runs,
        "loads": [[list(pair) for pair in histogram] for histogram in router.loads],
        "active_sets": [
            {"branches": list(branches), "runs": count} for branches, count in router.active_sets
        ],
    }


def _router(entry: ProfiledRouter) -> RouterProfile:
    sets = sorted((each.branches, each.runs) for each in entry.active_sets)
    loads: tuple[Histogram, ...] = entry.loads
    return RouterProfile(entry.name, entry.cells, entry.branches, entry.runs, loads, tuple(sets))


def _check_router(router: ProfiledRouter, path: JsonPath, faults: Faults) -> None:
    """Note counts that do not add up, loads above the cells, and branches that there are not."""
    if len(router.loads) != router.branches:
        faults.add(
            (*path, "loads"),
            f"expected {router.branches} histograms, one for each branch, got {len(router.loads)}",
        )
        return
    idle = [router.runs] * router.branches
    for position, active in enumerate(router.active_sets):
        place = (*path, "active_sets", position)
        _check_ascending([(branch,) for branch in active.branches], (*place, "branches"), faults)
        if max(active.branches, default=0) >= router.branches:
            faults.expected(place, f"branches below {router.branches}", list(active.branches))
            return
        for branch in active.branches:
            idle[branch] -= active.runs
    total = sum(each.runs for each in router.active_sets)
    _check_sum(total, router, (*path, "active_sets"), faults)
    for branch, histogram in enumerate(router.loads):
        place = (*path, "loads", branch)
        _check_ascending([pair[:1] for pair in histogram], place, faults)
        _check_sum(sum(count for _, count in histogram), router, place, faults)
        if histogram and histogram[-1][0] > router.cells:
            faults.expected(place, f"loads of at most {router.cells} cells", histogram[-1][0])
        zero = dict(histogram).get(0, 0)
        if zero != idle[branch]:
            faults.add(
                place, f"load 0 in {zero} runs, but it is in no active set in {idle[branch]}"
            )


def _check_ascending(keys: Sequence[tuple[int, ...]], path: JsonPath, faults: Faults) -> None:
    if any(one >= other for one, other in pairwise(keys)):
        faults.expected(path, "rows in ascending order, each once", [list(key) for key in keys])


def _check_sum(total: int, router: ProfiledRouter, path: JsonPath, faults: Faults) -> None:
    if total != router.runs:
        faults.add(path, f"counts of {total} runs in all, the router has {router.runs}")


def _check_transitions(file: RouteProfileFile, names: dict[str, int], faults: Faults) -> None:
    routers = file.profiled_routers
    shapes = [RouterShape(router.name, router.cells, router.branches) for router in routers]
    pairs = set(following_routers(shapes))
    seen: set[tuple[int, int]] = set()
    for index, entry in enumerate(file.transitions):
        path = ("transitions", index)
        src = faults.find((*path, "from"), "router", entry.src, names)
        dst = faults.find((*path, "to"), "router", entry.dst, names)
        if entry.src not in names or entry.dst not in names:
            continue
        if (src, dst) in seen:
            faults.add(path, "this pair of routers occurs twice")
        elif (src, dst) not in pairs:
            faults.add(path, f"{show(entry.dst)} is not the next router of as many cells")
        seen.add((src, dst))
        limits = (routers[src].branches, routers[dst].branches)
        _check_ascending([row[:-1] for row in entry.cells], (*path, "cells"), faults)
        for position, row in enumerate(entry.cells):
            if not _is_of(row, *limits):
                faults.expected(
                    (*path, "cells", position), "branches that the two routers have", list(row)
                )


def _is_of(row: tuple[int, ...], num_src: int, num_dst: int) -> bool:
    return row[0] < num_src and row[1] < num_dst and 1 <= row[2] <= num_dst
