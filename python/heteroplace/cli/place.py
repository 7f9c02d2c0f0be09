"""`heteroplace place`: a graph file and a cluster file to a plan, with tables. Needs no TVM."""

from __future__ import annotations

import argparse
import json
import sys

from heteroplace.errors import MissingCostError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cluster_file import load_cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.cost_file import costs_from_times, load_costs
from heteroplace.model.graph_file import GraphFile, load_graph
from heteroplace.model.plan_file import save_plan
from heteroplace.report.chrome_trace import TraceRun, write_trace
from heteroplace.report.tables import (
    Candidate,
    candidates_table,
    channel_table,
    device_table,
    headline,
    placement_table,
)
from heteroplace.simulate.simulator import simulate
from heteroplace.solve import SOLVERS, Problem, SolveOptions, SolveResult, explain, get_solver
from heteroplace.solve.single import single_makespans


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand `place`."""
    defaults = SolveOptions()
    parser = commands.add_parser(
        "place",
        help="place a task graph on a cluster",
        description="Place a task graph on a cluster and print where everything goes.",
    )
    parser.add_argument("--graph", required=True, metavar="FILE", help="task graph (JSON)")
    parser.add_argument(
        "--cluster", required=True, metavar="FILE|NAME", help="cluster (JSON), or a ready-made one"
    )
    parser.add_argument(
        "--costs", metavar="FILE", help="cost table (JSON); default: the times in the graph file"
    )
    parser.add_argument("--solver", choices=list(SOLVERS), default="auto", help="default: auto")
    parser.add_argument(
        "--budget",
        type=float,
        default=defaults.time_limit_s,
        metavar="SECONDS",
        help=f"time limit; default: {defaults.time_limit_s:g}",
    )
    parser.add_argument(
        "--iterations",
        type=int,
        metavar="N",
        help="limit that gives the same plan every time, unlike a time limit",
    )
    parser.add_argument("--seed", type=int, default=defaults.seed, help="default: 0")
    parser.add_argument("--json", action="store_true", help="print one JSON object, no tables")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the plan (JSON)")
    parser.add_argument("--trace", metavar="FILE", help="write the timeline as a Chrome trace")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Solve, print, and write the files that were asked for."""
    cluster = load_cluster(arguments.cluster)
    read = load_graph(arguments.graph)
    options = SolveOptions(
        time_limit_s=arguments.budget, iterations=arguments.iterations, seed=arguments.seed
    )
    problem = Problem(read.graph, cluster, read_costs(arguments.costs, read, cluster))
    result = get_solver(arguments.solver).solve(problem, options)
    plan = explain(problem, result.plan)
    timeline = simulate(problem.graph, cluster, problem.costs, plan)
    if arguments.output:
        save_plan(plan, problem.graph, cluster, arguments.output)
    if arguments.trace:
        runs = [TraceRun("predicted", plan, timeline)]
        write_trace(arguments.trace, problem.graph, cluster, runs)
    if arguments.json:
        json.dump(_to_json(problem, result, plan.reasons), sys.stdout, indent=1)
        print()
        return
    tables = (
        placement_table(problem.graph, cluster, plan, timeline),
        device_table(problem.graph, cluster, plan, timeline),
        channel_table(problem.graph, cluster, plan, timeline),
        candidates_table([Candidate(*entry) for entry in result.candidates])
        if result.candidates
        else "",
        _summary(problem, result),
    )
    print("\n\n".join(table for table in tables if table))


def read_costs(path: str | None, read: GraphFile, cluster: Cluster) -> CostTable:
    """Return the cost table in `path`, or else the one of the times in the graph file.

    Raises
    ------
    MissingCostError
        There is neither.
    """
    if path is not None:
        return load_costs(path, read.graph, cluster)
    if read.times is None:
        raise MissingCostError(
            f"the file of graph {read.graph.name!r} gives no times; add times_ns to its tasks, or "
            f"give a cost table with --costs"
        )
    return costs_from_times(read.graph, cluster, read.times)


def _summary(problem: Problem, result: SolveResult) -> str:
    singles = single_makespans(problem).items()
    best_single = min(singles, key=lambda single: single[1], default=None)
    text = headline(
        problem.cluster,
        result.plan,
        result.objective_ns,
        best_single,
        result.bound_ns,
    )
    return f"{text}\nsolver {result.solver}: {result.status} after {result.wall_s:.2f} s"


def _to_json(problem: Problem, result: SolveResult, reasons: tuple[str, ...]) -> dict[str, object]:
    devices = result.plan.placement(len(problem.graph.tasks))
    return {
        "objective_ns": result.objective_ns,
        "bound_ns": result.bound_ns,
        "gap": result.gap,
        "status": result.status,
        "solver": result.solver,
        "wall_s": result.wall_s,
        "placement": {
            task.name: problem.cluster.devices[device].name
            for task, device in zip(problem.graph.tasks, devices, strict=True)
        },
        "reasons": {
            task.name: reason for task, reason in zip(problem.graph.tasks, reasons, strict=True)
        },
        "candidates": [
            {"name": name, "makespan_ns": makespan, "note": note}
            for name, makespan, note in result.candidates
        ],
    }
