"""Prepared routed module -> tasks, with routers whose branches a program can run.

Kernels take tensors at multiples of 64 bytes only, so the rows of a branch have to begin at
multiples of so many rows (the router's quantum) that this is so for every tensor of its branches;
that costs room in buffers, and no row is computed for it. Rounds of a branch begin at multiples of
its largest capacity, which is made larger where that is no such number. A branch with a router in
it, which decides once, has a capacity for all cells. Of capacities for all cells one is left.
"""

from __future__ import annotations

from math import gcd, lcm
from typing import Any

import tvm

from heteroplace.model.graph import TaskGraph
from heteroplace.model.routed.routed_values import branch_of_rows
from heteroplace.model.routed.routers import Router
from heteroplace.parts.routing.relay.rewrite import model_digest, named_routers, update_routers
from heteroplace.relay.tasks.extract import Extraction, extract

_ALIGNMENT_BYTES = 64
"""Of the tensors that kernels take."""


def with_names(mod: tvm.IRModule, digest: str) -> tuple[tvm.IRModule, str]:
    """Return a module whose routers have names, and its `Network.model_digest`.

    Parameters
    ----------
    digest
        The digest where it is known; "": it is computed.
    """
    named = named_routers(mod)
    return named, digest or model_digest(named)


def extract_routed(mod: tvm.IRModule, name: str = "model") -> Extraction:
    """Cut a prepared module with routers, which have names, into tasks.

    Raises
    ------
    UnsupportedRelayError
        As `extract`; an op reads values of several branches.
    """
    extraction = extract(mod, name)
    changes = {
        router.name: change
        for router_id, router in enumerate(extraction.graph.routers)
        if (change := _change(extraction.graph, router_id))
    }
    return extract(update_routers(mod, changes), name) if changes else extraction


def _change(graph: TaskGraph, router_id: int) -> dict[str, Any]:
    """What has to be other of a router."""
    router = graph.routers[router_id]
    rows = [1] * router.num_branches
    for tensor in graph.tensors:
        branch = None if tensor.buffer is None else branch_of_rows(graph, tensor)
        if branch is not None and branch[0] == router_id:
            row_bytes = tensor.bytes // router.num_cells
            aligned = _ALIGNMENT_BYTES // gcd(_ALIGNMENT_BYTES, row_bytes)
            rows[branch[1]] = lcm(rows[branch[1]], aligned)
    quantum = lcm(router.quantum, *rows)
    capacities = tuple(
        _with_rounds(router, sizes, aligned, (router.name, branch) in _parents(graph))
        for branch, (sizes, aligned) in enumerate(zip(router.capacities, rows, strict=True))
    )
    attributes: dict[str, Any] = {}
    if quantum != router.quantum:
        attributes["quantum"] = quantum
    if capacities != router.capacities:
        attributes["capacities"] = capacities
    return attributes


def _parents(graph: TaskGraph) -> set[tuple[str, int] | None]:
    return {router.parent for router in graph.routers}


def _with_rounds(
    router: Router, sizes: tuple[int, ...], aligned: int, is_parent: bool
) -> tuple[int, ...]:
    """The capacities of a branch that a load can need, with a largest one by which it can run in
    rounds, or need not."""
    # A buffer has room for what is run; a kernel for more rows would be compiled for nothing.
    sizes = (
        tuple(size for size in sizes if size < router.num_cells)
        + tuple(size for size in sizes if size >= router.num_cells)[:1]
    )
    if router.overflow != "rounds" or sizes[-1] >= router.num_cells:
        return sizes
    largest = -(-sizes[-1] // aligned) * aligned
    if is_parent or largest >= router.num_cells:
        return (*sizes, router.num_cells)
    return sizes if largest == sizes[-1] else (*sizes, largest)
