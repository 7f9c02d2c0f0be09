"""Prepared routed module -> tasks, with routers whose branches begin where kernels take tensors.

Kernels take tensors at multiples of 64 bytes only, so the rows of a branch have to begin at
multiples of so many rows (the router's quantum) that this is so for every tensor of its branches.
It costs room in buffers, and no row is computed for it.
"""

from __future__ import annotations

from math import gcd, lcm

import tvm

from heteroplace.model.graph import TaskGraph
from heteroplace.model.routed_values import branch_of_rows
from heteroplace.relay.expressions import post_order
from heteroplace.relay.routing.ops import routing_kind
from heteroplace.relay.routing.rewrite import update_routers
from heteroplace.relay.tasks.extract import Extraction, extract

_ALIGNMENT_BYTES = 64
"""Of the tensors that kernels take."""


def has_routers(mod: tvm.IRModule) -> bool:
    """Say whether a module has routers."""
    return any(routing_kind(node) == "router" for node in post_order(mod["main"].body))


def extract_routed(mod: tvm.IRModule, name: str = "model") -> Extraction:
    """Cut a prepared module with routers, which have names, into tasks.

    Raises
    ------
    UnsupportedRelayError
        As `extract`; an op reads values of several branches.
    """
    found = extract(mod, name)
    changes = {
        found.graph.routers[router].name: {"quantum": quantum}
        for router, quantum in _quanta(found.graph).items()
        if quantum != found.graph.routers[router].quantum
    }
    return extract(update_routers(mod, changes), name) if changes else found


def _quanta(graph: TaskGraph) -> dict[int, int]:
    """For each router with rows the least multiple of its quantum that aligns all of them."""
    found: dict[int, int] = {}
    for tensor in graph.tensors:
        branch = None if tensor.buffer is None else branch_of_rows(graph, tensor)
        if branch is None:
            continue
        router = graph.routers[branch[0]]
        row_bytes = tensor.bytes // router.num_cells
        known = found.get(branch[0], router.quantum)
        found[branch[0]] = lcm(known, _ALIGNMENT_BYTES // gcd(_ALIGNMENT_BYTES, row_bytes))
    return found
