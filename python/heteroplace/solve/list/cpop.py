"""CPoP, critical path on a processor: the longest path on the device that runs it fastest.

C++: src/list/cpop.cc. Topcuoglu, Hariri, Wu, "Performance-Effective and Low-Complexity Task
Scheduling for Heterogeneous Computing", 2002, section 4.3 (10.1109/71.993206).
"""

from heteroplace.solve.list.solver import ListSolver


class CpopSolver(ListSolver):
    """The critical path on one device, all other tasks where they finish first."""

    name = "cpop"
