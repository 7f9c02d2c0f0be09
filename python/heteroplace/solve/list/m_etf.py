"""m-ETF: of all ready tasks and devices with room the pair that starts first goes next.

C++: src/list/m_etf.cc (list::MEtf). Jeon et al., "Baechi: Fast Device Placement of Machine Learning
Graphs", SoCC 2020, section 3 (10.1145/3419111.3421302).
"""

from heteroplace.solve.list.solver import ListSolver


class MEtfSolver(ListSolver):
    """Of all ready tasks and devices with room the pair that starts first goes next."""

    name = "m-etf"
