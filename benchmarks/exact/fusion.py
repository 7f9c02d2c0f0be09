"""`exact --fusion`: what Celeritas' fusion makes of its training graphs, and its measuring.

A row for each graph: nodes and CCR before and after fusion (the paper's table 2), and the step time
of the placements on which its Standard Evaluation would measure the network (section 4.2), by the
order in which devices are filled: breadth first, depth first, and its whole pipeline. Times are
simulated ms; None: more than the memories hold, by as much as `excess_gib` says. `paper` is of the
paper's graphs and machine; its measurement times are minutes, of which only the order counts here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from benchmarks.exact.paper import CELERITAS_FUSION
from benchmarks.row_table import row_table
from heteroplace.coarsen.breakpoints import fuse_segments
from heteroplace.coarsen.coarse import coarsen
from heteroplace.coarsen.joined_groups import join_colocation_groups
from heteroplace.coarsen.levels import level_weights
from heteroplace.native.list import evaluate_order
from heteroplace.solve.list.sequential_placement import PIPELINE, sequential_placement
from heteroplace.solve.problem import Problem
from zoo.graphs.catalogue import exact_instances
from zoo.graphs.training_networks import TRAINED

Row = dict[str, object]
MEASURING_ORDERS: Mapping[str, str] = {"m": "m_topo", "dfs": "dfs_topo", PIPELINE: "pipeline"}
"""Orders of Standard Evaluation, and what their columns begin with."""


def fusion_rows(
    say: Callable[[str], None], names: tuple[str, ...] = tuple(TRAINED)
) -> Iterator[Row]:
    """Yield a row for each of the training graphs of these names."""
    for name in names:
        say(f"celeritas/{name}")
        problem = exact_instances()[f"celeritas/{name}"].build()
        yield fusion_row(problem) | {"paper": dict(CELERITAS_FUSION[name])}


def fusion_row(problem: Problem) -> Row:
    """Return nodes and CCR before and after fusion, and the step times of measuring."""
    graph, cluster, costs = problem.graph, problem.cluster, problem.costs
    begin = time.process_time()
    joined = join_colocation_groups(graph, cluster, costs)
    fused = coarsen(joined, fuse_segments(joined, cluster, costs).groups)
    row: Row = {
        "graph": graph.name,
        "tasks": len(graph.tasks),
        "fused_tasks": len(fused.graph.tasks),
        "ccr": round(level_weights(graph, cluster, costs).ccr, 3),
        "fused_ccr": round(
            level_weights(fused.graph, cluster, fused.project_costs(costs, cluster)).ccr, 3
        ),
        "fusion_cpu_s": round(time.process_time() - begin, 3),
    }
    for order, column in MEASURING_ORDERS.items():
        found = sequential_placement(graph, cluster, costs, order)
        plan = evaluate_order(problem.native, found.devices, found.order)
        row[f"{column}_ms"] = None if found.excess_bytes else round(plan.makespan_ns / 1e6, 3)
        row[f"{column}_excess_gib"] = round(sum(found.excess_bytes.values()) / 2**30, 2)
    return row


def fusion_table(rows: list[Row]) -> str:
    """Return the rows as text."""
    shown = []
    for row in rows:
        paper = row["paper"]
        assert isinstance(paper, dict)
        text = ", ".join(f"{key} {value}" for key, value in paper.items())
        shown.append({**row, "paper": text})
    return row_table(shown)
