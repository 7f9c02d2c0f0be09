"""MET, minimum execution time: each task on the device that runs it fastest.

C++: src/list/met.cc (list::Met). Braun et al., "A Comparison of Eleven Static Heuristics for
Mapping a Class of Independent Tasks onto Heterogeneous Distributed Computing Systems", 2001
(10.1006/jpdc.2000.1714); a baseline of DiviML (section V).
"""

from heteroplace.solve.list.solver import ListSolver


class MetSolver(ListSolver):
    """Each task on the device that runs it fastest; memory permitting."""

    name = "met"
