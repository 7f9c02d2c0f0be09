"""PEFT, predict earliest finish time: HEFT that looks at the best that can follow on each device.

C++: src/list/peft.cc. Arabnejad, Barbosa, "List Scheduling Algorithm for Heterogeneous Systems by
an Optimistic Cost Table", 2014 (10.1109/TPDS.2013.57).
"""

from heteroplace.solve.list.solver import ListSolver


class PeftSolver(ListSolver):
    """Each task where its finish plus the least time of all that follows is least."""

    name = "peft"
