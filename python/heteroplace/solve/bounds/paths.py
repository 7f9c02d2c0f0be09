"""Critical path: each task on its fastest device, transfers free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.native.core_graph import Dag
from heteroplace.native.core_problem import NativeProblem


@dataclass(frozen=True)
class Paths:
    """Longest paths through a graph. Arrays are [num_tasks]."""

    fastest_ns: IntArray
    """Run time on the fastest device."""
    head_ns: IntArray
    """Least time before the start of a task."""
    tail_ns: IntArray
    """Least time after its finish."""

    @property
    def critical_path_ns(self) -> int:
        """Length of the longest path; 0 for an empty graph."""
        return int((self.head_ns + self.fastest_ns + self.tail_ns).max(initial=0))


def find_paths(native: NativeProblem) -> Paths:
    """Return the longest paths if every task has a device. O(num_tasks + num_edges)."""
    largest = np.iinfo(np.int64).max
    fastest = np.where(native.run_ns == IMPOSSIBLE, largest, native.run_ns).min(
        axis=1, initial=largest
    )
    src: list[int] = []
    dst: list[int] = []
    for tensor in native.graph.tensors:
        if tensor.producer is not None:
            src.extend([tensor.producer] * len(tensor.consumers))
            dst.extend(tensor.consumers)
    dag = Dag.of_edges(len(fastest), src, dst)
    levels = dag.levels(fastest, np.zeros(dag.num_edges, dtype=np.int64))
    return Paths(fastest, levels.tlevel_ns, levels.blevel_ns - fastest)
