"""Graph algorithms of the C++ core on flat arrays: orders, levels, segments, cuts.

Nothing here knows tasks or tensors; `heteroplace.coarsen` gives the arrays their meaning. All
functions are deterministic and raise GraphError on a cycle or on sizes that disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import heteroplace._core as _core
from heteroplace.errors import GraphError

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Ints = Sequence[int] | IntArray


@dataclass(frozen=True)
class Levels:
    """Lengths of the longest paths to and from each node."""

    tlevel_ns: IntArray
    """[num_nodes], to the start of the node; 0 for sources."""
    blevel_ns: IntArray
    """[num_nodes], from the start of the node, the node included."""
    critical_path: IntArray
    """Nodes of a longest path, in order; ties: the lower id."""

    @property
    def through_ns(self) -> IntArray:
        """[num_nodes], length of the longest path through each node."""
        return self.tlevel_ns + self.blevel_ns

    @property
    def critical_path_ns(self) -> int:
        """Length of the longest path; 0 for an empty graph."""
        return int(self.through_ns.max(initial=0))


@dataclass(frozen=True)
class SegmentRules:
    """What may share a segment of consecutive nodes. Arrays are [num_nodes]."""

    max_nodes: int
    max_bytes: int
    """A node that is larger is a segment of its own."""
    node_bytes: IntArray
    label: IntArray
    """Nodes with different labels >= 0 never share a segment; -1: no label."""
    devices: BoolArray
    """[num_nodes, num_devices]; a segment of several nodes needs a device that all of them have."""


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


class Dag:
    """A directed graph; the id of an edge is its position in `src` and `dst`. Immutable.

    Edges are sorted by (src, dst). It may hold a cycle: `cycle()` finds one, and all that needs a
    topological order raises GraphError.
    """

    def __init__(self, core: _core.Dag) -> None:
        """Wrap a graph of the core; see `of_edges`."""
        self._core = core
        self._offsets: IntArray = core.offsets
        self.dst: IntArray = core.successors
        """[num_edges]"""
        self.num_nodes = len(self._offsets) - 1
        self.src: IntArray = np.repeat(np.arange(self.num_nodes), np.diff(self._offsets))
        """[num_edges]"""

    @classmethod
    def of_edges(cls, num_nodes: int, src: Ints, dst: Ints) -> Dag:
        """Build a graph; an edge that is given twice is one edge.

        Raises
        ------
        GraphError
            An end of an edge is not in 0..num_nodes-1.

        >>> Dag.of_edges(3, [0, 1, 0], [2, 2, 2]).src.tolist()
        [0, 1]
        """
        ends = np.array([src, dst], dtype=np.int64).reshape(2, -1)
        if ends.size and not (ends.min() >= 0 and ends.max() < num_nodes):
            raise GraphError(
                f"edges join nodes {ends.min()} to {ends.max()}; expected 0 to {num_nodes - 1}"
            )
        keys = np.unique(ends[0] * num_nodes + ends[1])
        rows, values = np.divmod(keys, max(1, num_nodes))
        offsets = np.searchsorted(rows, np.arange(num_nodes + 1))
        return cls(_core.Dag(_ints(offsets), _ints(values)))

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.dst)

    def edge_ids(self, src: Ints, dst: Ints) -> IntArray:
        """Return the ids of edges that exist, for each pair of ends."""
        keys = self.src * self.num_nodes + self.dst
        requested = np.asarray(src, dtype=np.int64) * self.num_nodes + np.asarray(
            dst, dtype=np.int64
        )
        return np.searchsorted(keys, requested).astype(np.int64)

    def successors(self, node: int) -> IntArray:
        """Return the nodes that the edges of a node lead to, ascending."""
        return self.dst[self._offsets[node] : self._offsets[node + 1]]

    def cycle(self) -> list[int]:
        """Return the nodes of one cycle in order; empty if there is none."""
        nodes: list[int] = _core.find_cycle(self._core).tolist()
        return nodes

    def quotient(self, group_of: Ints, num_groups: int) -> Dag:
        """Return the graph of groups, one edge for each pair of groups that has any."""
        return Dag(_core.quotient(self._core, _ints(group_of), num_groups))

    def breadth_first_order(self) -> IntArray:
        """M-TOPO of Celeritas: freed nodes go to the tail of the list."""
        return _core.breadth_first_order(self._core)

    def depth_first_order(self) -> IntArray:
        """DFS-TOPO of Celeritas: freed nodes go to the head of the list."""
        return _core.depth_first_order(self._core)

    def critical_path_order(self, through_ns: Ints) -> IntArray:
        """CPD-TOPO of Celeritas: as DFS-TOPO, the longest path (`Levels.through_ns`) first."""
        return _core.critical_path_order(self._core, _ints(through_ns))

    def levels(self, node_ns: Ints, edge_ns: Ints) -> Levels:
        """Return t-level, b-level and a critical path, for times of nodes and edges in ns."""
        return Levels(*_core.levels(self._core, _ints(node_ns), _ints(edge_ns)))

    def cut_into_segments(
        self, order: Ints, edge_ns: Ints, rules: SegmentRules
    ) -> tuple[list[int], int]:
        """Cut a topological order so that the edges between segments cost least.

        Returns
        -------
        Positions in `order` where segments begin, and the cost of the edges between segments in ns.
        """
        starts, cut_ns = _core.cut_into_segments(
            self._core,
            _ints(order),
            _ints(edge_ns),
            rules.max_nodes,
            rules.max_bytes,
            _ints(rules.node_bytes),
            _ints(rules.label),
            _bit_sets(rules.devices),
        )
        return starts.tolist(), cut_ns

    def cuts(self) -> Cuts:
        """Return articulation points, bridges and what is left without the bridges."""
        articulation, bridge, component, num_components = _core.find_cuts(self._core)
        return Cuts(articulation.astype(bool), bridge.astype(bool), component, num_components)

    def edge_connected_components(self, k: int) -> IntArray:
        """Return the component of each node, numbered by the lowest node inside.

        Two nodes share one if no cut of fewer than `k` edges parts them, the edges taken as
        undirected. O(k n m) at worst.
        """
        return _core.edge_connected_components(self._core, k)

    def strong_components(self) -> IntArray:
        """Return the component of each node: two share one if each reaches the other.

        Edges between components lead to higher numbers. O(n + m).
        """
        return _core.strong_components(self._core)

    def balanced_prefix_cuts(
        self,
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
        allowed = np.ones(self.num_nodes, dtype=bool) if is_allowed is None else is_allowed
        starts, cost = _core.balanced_prefix_cuts(
            self._core, _ints(order), max_channels, target_nodes, min_nodes, _ints(allowed)
        )
        return starts.tolist(), cost


def _ints(values: Ints | BoolArray) -> IntArray:
    return np.ascontiguousarray(values, dtype=np.int64)


def _bit_sets(devices: BoolArray) -> IntArray:
    """[num_nodes * words], 62 devices in a word."""
    num_nodes, num_devices = devices.shape
    num_words = -(-num_devices // 62)
    words = np.zeros((num_nodes, num_words), dtype=np.int64)
    for device in range(num_devices):
        words[:, device // 62] |= devices[:, device].astype(np.int64) << (device % 62)
    return words.ravel()
