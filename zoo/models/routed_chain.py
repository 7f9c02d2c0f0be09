"""Layers that a router may skip, whose weights take about as long to load as to be used.

The groups of weights of Cui et al., "Brainstorm" (OSDI 2023), 4.4: before each layer a router takes
one of two branches for the whole tensor, of which one has weights.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relay

from heteroplace import routing
from heteroplace.model.routed.route_profile import RouteRecord
from zoo.models.routed import RoutedNetwork, RoutedParts, steered_top_k


def routed_chain(layers: int = 6, rows: int = 48, width: int = 512, seed: int = 0) -> RoutedNetwork:
    """Return layers of which branch 0 is a product of [rows, width] with its own matrix, and branch
    1 a relu."""
    parts = RoutedParts(seed)
    x = parts.input("x", 1, rows, width)
    for layer in range(layers):
        name = f"layer{layer}"
        first = relay.strided_slice(x, [0, 0, 0], [1, 1, width])
        scores = parts.linear(f"{name}.router", relay.reshape(first, (1, width)), width, 2)
        decision = steered_top_k(scores, parts.steer(name, 1, 2), 1)
        cells = routing.annotate_cell(x, dims=(0,), shape=(1, rows, width))
        ways = [_product(parts, f"{name}.product", (rows, width)), relay.nn.relu]
        x = routing.route(cells, decision, ways, name=name)
    return parts.network(x, 1)


def chain_records(
    network: RoutedNetwork, share: float, num_runs: int, seed: int = 0
) -> list[RouteRecord]:
    """Return decisions in which each router takes branch 0 in this share of the runs, rounded, and
    branch 1 in the others, each router in other ones."""
    random = np.random.default_rng(seed)
    likely = np.arange(num_runs) < round(share * num_runs)
    taken = {router.name: random.permutation(likely) for router in network.routers}
    records = []
    for run in range(num_runs):
        for router in network.routers:
            branch = 0 if taken[router.name][run] else 1
            loads = tuple(int(each == branch) for each in range(router.num_branches))
            records.append(RouteRecord(run, router.name, loads, ((branch,),)))
    return records


def _product(
    parts: RoutedParts, name: str, shape: tuple[int, int]
) -> Callable[[relay.Expr], relay.Expr]:
    rows, width = shape

    def run(cell: relay.Expr) -> relay.Expr:
        flat = relay.reshape(cell, (rows, width))
        y = relay.nn.relu(parts.linear(name, flat, width, width))
        return relay.reshape(y, (1, rows, width))

    return run
