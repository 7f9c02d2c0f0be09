"""What `benchmarks tables` makes: the tables of EXACT.md and PLACE.md, and what each of them runs.

A part is one table. It is run graph by graph, since the bounds of all solvers of a graph make one
row; `solvers` and `graphs` are those of the registries, so a new one is a new column or row. As
many solvers run at once as there are cores, each with one thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.exact.cases import TABLES, Case, all_cases
from benchmarks.exact.command import ExactOptions, exact_rows
from benchmarks.exact.pictures import PICTURES
from benchmarks.place.command import PlaceOptions, default_solvers, place_rows
from benchmarks.place.growth import growth_rows
from benchmarks.place.peers import peer_rows
from benchmarks.place.saga import saga_rows
from heteroplace.control_groups import usable_cores
from heteroplace.solve import SOLVERS
from heteroplace.solve.problem import OBJECTIVES
from zoo.graphs.catalogue import instances

EXACT, PLACE = "EXACT", "PLACE"
DOCUMENTS = (EXACT, PLACE)
LATENCY, THROUGHPUT = "place-latency", "place-throughput"
GROWTH = "growth"
ALONE = ""
"""The one graph of a part that chooses its graphs itself."""
_WIDE_SHARE = 0.3
"""Of the budget, where 30 solvers meet on 69 graphs."""

Row = dict[str, object]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """One table."""

    name: str
    document: str
    """One of DOCUMENTS, without its ending."""
    title: str
    graphs: tuple[str, ...]
    solvers: tuple[str, ...]
    """Columns of the table; empty: its rows name what they compare."""
    measure: Callable[[str, float, Say], list[Row]]
    """(graph, seconds for each solver) -> rows of all its solvers."""
    draw: Callable[[Path, Sequence[Row]], None] | None = None
    """(file, rows of all its graphs): writes its picture; None: it has none."""
    budget_share: float = 1.0
    """Of the seconds for each solver that are asked for, those that it gives."""

    @property
    def picture_name(self) -> str:
        """File of the picture, in the folder of the documents."""
        return f"{self.name}.svg"


def all_parts() -> list[Part]:
    """Return the parts in the order of the documents; published files are graphs of them only where
    they are."""
    return [*_exact_parts(), *_place_parts()]


def _exact_parts() -> Iterator[Part]:
    for table, title in TABLES.items():
        cases = [case for case in all_cases() if case.table == table]
        solvers = dict.fromkeys(name for case in cases for name in case.solvers)
        yield Part(
            table,
            EXACT,
            title,
            tuple(case.instance for case in cases),
            tuple(name for name in solvers if name in SOLVERS),
            _exact_measure(cases),
            PICTURES.get(table),
        )


def _exact_measure(cases: list[Case]) -> Callable[[str, float, Say], list[Row]]:
    of_graph = {case.instance: case for case in cases}

    def measure(graph: str, budget_s: float, say: Say) -> list[Row]:
        only = f"^{re.escape(of_graph[graph].name)}$"
        options = ExactOptions(only, budget_s=budget_s, jobs=usable_cores())
        return list(exact_rows(options, say))

    return measure


def _place_parts() -> Iterator[Part]:
    for name, objective in zip((LATENCY, THROUGHPUT), OBJECTIVES, strict=True):
        solvers = default_solvers(PlaceOptions(objective=objective))
        title = {LATENCY: "one item: makespans", THROUGHPUT: "time from one item to the next"}[name]
        measure, graphs = _place_measure(objective), tuple(instances())
        yield Part(name, PLACE, title, graphs, solvers, measure, budget_share=_WIDE_SHARE)
    alone = (
        (GROWTH, "ns of processor time per task", growth_rows),
        ("peers", "m-ETF and m-SCT beside plain Python", peer_rows),
        ("saga", "list schedulers beside SAGA's", saga_rows),
    )
    for name, title, rows_of in alone:
        yield Part(name, PLACE, title, (ALONE,), (), _alone_measure(rows_of))


def _place_measure(objective: str) -> Callable[[str, float, Say], list[Row]]:
    def measure(graph: str, budget_s: float, say: Say) -> list[Row]:
        options = PlaceOptions(budget_s=budget_s, objective=objective, jobs=usable_cores())
        return list(place_rows(options, say, [instances()[graph]]))

    return measure


def _alone_measure(rows_of: Callable[[Say], list[Row]]) -> Callable[[str, float, Say], list[Row]]:
    def measure(graph: str, budget_s: float, say: Say) -> list[Row]:
        return rows_of(say)

    return measure
