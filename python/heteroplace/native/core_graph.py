"""Graph algorithms of the C++ core on flat arrays: orders, levels, segments.

Nothing here knows tasks or tensors; `heteroplace.coarsen` gives the arrays their meaning. All
functions are deterministic and raise GraphError on a cycle or on sizes that disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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

    @property
    def device_bits(self) -> IntArray:
        """The devices of each node as bits, [num_nodes * words], 62 devices in a word."""
        num_nodes, num_devices = self.devices.shape
        words = np.zeros((num_nodes, -(-num_devices // 62)), dtype=np.int64)
        for device in range(num_devices):
            words[:, device // 62] |= self.devices[:, device].astype(np.int64) << (device % 62)
        return words.ravel()


class Dag(_core.Dag):
    """A directed graph; the id of an edge is its position in `src` and `dst`. Immutable.

    Edges are sorted by (src, dst). It may hold a cycle: `cycle()` finds one, and all that needs a
    topological order raises GraphError.
    """

    @cached_property
    def dst(self) -> IntArray:
        """[num_edges]"""
        return self.heads

    @cached_property
    def src(self) -> IntArray:
        """[num_edges]"""
        return np.repeat(np.arange(self.num_nodes), np.diff(self.offsets))

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
        return cls(offsets.astype(np.int64), values)

    def edge_ids(self, src: Ints, dst: Ints) -> IntArray:
        """Return the ids of edges that exist, for each pair of ends."""
        keys = self.src * self.num_nodes + self.dst
        requested = np.asarray(src, dtype=np.int64) * self.num_nodes + np.asarray(
            dst, dtype=np.int64
        )
        return np.searchsorted(keys, requested).astype(np.int64)

    def successors(self, node: int) -> IntArray:
        """Return the nodes that the edges of a node lead to, ascending."""
        begin, end = np.searchsorted(self.src, (node, node + 1))
        return self.dst[begin:end]

    def quotient(self, group_of: Ints, num_groups: int) -> Dag:
        """Return the graph of groups, one edge for each pair of groups that has any."""
        return Dag(*self.quotient_edges(group_of, num_groups))
