"""A plain graph -> where it is narrow: bridges, edge-connected components, prefixes of orders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import heteroplace._core as _core
from heteroplace.native.core_graph import BoolArray, Dag, IntArray, Ints


@dataclass(frozen=True)
class Cuts:
    """Where a graph falls apart, its edges taken as undirected."""

    is_articulation: BoolArray
    """[num_nodes]"""
    is_bridge: BoolArray
    """[num_edges]"""
    component: IntArray
    """[num_nodes], what is left without the bridges, numbered by the lowest node inside."""
    num_components: int


def find_cuts(dag: Dag) -> Cuts:
    """Return articulation points, bridges and what is left without the bridges."""
    articulation, bridge, component, num_components = _core.find_cuts(dag)
    return Cuts(articulation.astype(bool), bridge.astype(bool), component, num_components)


def edge_connected_components(dag: Dag, k: int) -> IntArray:
    """Return the component of each node, numbered by the lowest node inside.

    Two nodes share one if no cut of fewer than `k` edges parts them, the edges taken as
    undirected. O(k n m) at worst.
    """
    return _core.edge_connected_components(dag, k)


def balanced_prefix_cuts(
    dag: Dag,
    order: Ints,
    max_channels: int,
    target_nodes: int,
    min_nodes: int,
    is_allowed: BoolArray | None = None,
) -> tuple[list[int], int]:
    """Cut a topological order into modules of about `target_nodes` that form a path.

    At most `max_channels` edges cross a cut and no edge crosses two. `is_allowed` tells for
    each position whether there may be a cut before it; None: everywhere.

    Returns
    -------
    Positions where modules begin, and the sum of (size - target_nodes)**2, which is least.
    """
    allowed = np.ones(dag.num_nodes, dtype=bool) if is_allowed is None else is_allowed
    starts, cost = _core.balanced_prefix_cuts(
        dag, _ints(order), max_channels, target_nodes, min_nodes, _ints(allowed)
    )
    return starts.tolist(), cost


def _ints(values: Ints | BoolArray) -> IntArray:
    return np.ascontiguousarray(values, dtype=np.int64)
