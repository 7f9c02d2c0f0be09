"""Plan + rows -> the bytes that an executor of the plan will hold in each memory.

Two levels of exactness, both before any machine code is made:

- `simulate(...).peak_bytes` needs graph and plan only, and is what solvers compare. It is the
  greatest sum of weights, live tensors and the scratch memory of what runs at that moment.
- `predict_memory` needs the rows, which know the layouts, fusion and scratch memory of the chosen
  kernels, and lays the program out as the compiler does, so an executor holds just that. It is
  above the first by the scratch memory of cores that is kept between their kernels, by alignment
  and whole pages, by what the layout loses between values (mostly nothing), and by values that
  may not follow each other without a wait. It can be below only where the graph has tensors that
  the compiled program has not: those of reshapes, which share bytes.
"""

from __future__ import annotations

from heteroplace.codegen.kernels import Rows
from heteroplace.codegen.lower import lower
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory import MemoryUse
from heteroplace.model.plan import Plan
from heteroplace.model.timeline import Timeline


def predict_memory(
    rows: Rows, graph: TaskGraph, cluster: Cluster, plan: Plan, predicted: Timeline | None
) -> tuple[MemoryUse, ...]:
    """Return what each memory of the cluster will hold.

    Parameters
    ----------
    rows
        Kernel calls of the network for the targets of the plan (`lower_segments`); they need not
        be compiled.
    predicted
        The simulated timeline of `plan`, or None, as for `heteroplace.codegen.lower.lower`.

    Scratch memory that kernels of a GPU take from the driver, the code itself and the stacks of
    threads are not in it.

    Raises
    ------
    LoweringError, InfeasibleError
        As `heteroplace.codegen.lower.lower`.
    """
    return lower(rows, graph, cluster, plan, predicted).memory
