"""The seven tasks on which levels, orders and breakpoints are worked out by hand."""

from __future__ import annotations

from heteroplace.coarsen.levels import LevelWeights, level_weights
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from tests.dags import PAIR, lettered

RUN_NS = {"a": 2, "b": 3, "c": 1, "d": 4, "e": 2, "f": 3, "g": 1}
SIZES = {"ab": 2, "ac": 5, "bd": 1, "ce": 4, "df": 6, "ef": 2, "bg": 1}


def example_graph() -> TaskGraph:
    return lettered(" ".join(SIZES), RUN_NS, **SIZES)


def example_costs() -> CostTable:
    graph = example_graph()
    return build_table(graph, PAIR, lambda task, _: Cost.given(RUN_NS[graph.tasks[task].name]))


def example_weights() -> LevelWeights:
    return level_weights(example_graph(), PAIR, example_costs())
