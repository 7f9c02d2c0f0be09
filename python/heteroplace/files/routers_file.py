"""Routers and branches of task graphs as entries of graph files, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from msgspec import UNSET, UnsetType

from heteroplace.files.fields.graph_fields import BranchEntry, RouterEntry
from heteroplace.model.graph import TaskGraph, Tensor
from heteroplace.model.routed.routers import Router


def branch_of(entry: BranchEntry | UnsetType) -> tuple[str, int] | None:
    """Return (router's name, branch) of an entry; None: absent."""
    return None if entry is UNSET else (entry.router, entry.branch)


def branch_to_json(branch: tuple[str, int]) -> dict[str, object]:
    """Return what `branch_of` reads."""
    return {"router": branch[0], "branch": branch[1]}


def router_of(entry: RouterEntry) -> Router:
    """Return a router without ids, as `TaskGraphBuilder.add_router` takes it."""
    return Router(
        *(entry.name, -1, -1, entry.cells, entry.top_k, entry.capacities),
        overflow="rounds" if entry.overflow is UNSET else entry.overflow,
        quantum=1 if entry.quantum is UNSET else entry.quantum,
        parent=branch_of(entry.parent),
    )


def placed_routers(
    entries: Iterable[RouterEntry], tensors: Sequence[Tensor], tensor_ids: Mapping[str, int]
) -> tuple[Router, ...]:
    """Return the routers with ids, in the order of their tasks; KeyError: no tensor is so called.

    A task that is -1 is none: the loads are a model input.
    """
    placed = []
    for entry in entries:
        loads = tensor_ids[entry.loads]
        task = tensors[loads].producer
        placed.append(replace(router_of(entry), loads=loads, task=-1 if task is None else task))
    return tuple(sorted(placed, key=lambda router: router.task))


def router_to_json(graph: TaskGraph, router: Router) -> dict[str, object]:
    """Return a router of a graph as its entry."""
    value: dict[str, object] = {
        "name": router.name,
        "loads": graph.tensors[router.loads].name,
        "cells": router.num_cells,
        "top_k": router.top_k,
        "capacities": [list(sizes) for sizes in router.capacities],
        "overflow": router.overflow,
    }
    if router.quantum != 1:
        value["quantum"] = router.quantum
    if router.parent is not None:
        value["parent"] = branch_to_json(router.parent)
    return value
