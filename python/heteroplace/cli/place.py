"""`heteroplace place`: a graph file and a cluster file to a plan, with tables. Needs no TVM."""

from __future__ import annotations

import argparse
import gc
import sys
import time

from heteroplace.cli.interrupts import Interrupts
from heteroplace.cli.shared import add_output, add_problem, check_writable, print_json
from heteroplace.errors import MissingCostError
from heteroplace.files.cluster import load_cluster
from heteroplace.files.costs import costs_from_times, load_costs
from heteroplace.files.graph import GraphFile, load_graph
from heteroplace.files.plan import save_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.collector import paused_collector
from heteroplace.model.cost import CostTable
from heteroplace.model.units import format_ns
from heteroplace.options import add_arguments, from_arguments
from heteroplace.progress import ProgressLine
from heteroplace.report.chrome_trace import TraceRun, write_trace
from heteroplace.report.tables import (
    Candidate,
    candidates_table,
    channel_table,
    cost_sources_line,
    device_table,
    headline,
    placement_table,
)
from heteroplace.simulate.simulator import simulate
from heteroplace.solve import SOLVERS, Problem, SolveOptions, SolveResult, explain, get_solver
from heteroplace.solve.list.single import single_makespans
from heteroplace.solve.problem import make_result

_RENAMED = {"time_limit": "budget"}
_OPTIONS = (
    *("objective", "time_limit", "iterations", "items", "seed", "threads"),
    "min_gain_ratio",
)


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand `place`."""
    parser = commands.add_parser(
        "place",
        help="place a task graph on a cluster",
        description="Place a task graph on a cluster and print where everything goes.",
    )
    add_problem(parser)
    parser.add_argument("--solver", choices=list(SOLVERS), default="auto", help="default: auto")
    add_arguments(parser, SolveOptions, renamed=_RENAMED, names=_OPTIONS)
    add_output(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="write the plan (JSON)")
    parser.add_argument("--trace", metavar="FILE", help="write the timeline as a Chrome trace")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Solve, print, and write the files that were asked for.

    The first Ctrl-C ends the search; its best plan is taken. The second one ends the program.
    """
    is_shown = arguments.progress or sys.stderr.isatty()
    line = ProgressLine(sys.stderr if is_shown else None, time.perf_counter())
    check_writable(arguments.output, arguments.trace)
    options = from_arguments(SolveOptions, arguments, _RENAMED, progress=line)
    with paused_collector():
        cluster = load_cluster(arguments.cluster)
        read = load_graph(arguments.graph)
        problem = Problem(read.graph, cluster, read_costs(arguments.costs, read, cluster))
        gc.freeze()  # Hundreds of thousands of values that stay, and need not be walked again.
    try:
        with Interrupts() as interrupts:
            result = _solve(problem, arguments.solver, options, line, interrupts)
            interrupts.ends_work = False
            _finish(arguments, options, problem, result)
    finally:
        gc.unfreeze()


def _solve(
    problem: Problem,
    solver: str,
    options: SolveOptions,
    line: ProgressLine,
    interrupts: Interrupts,
) -> SolveResult:
    """Return the solver's plan, or the best one it reported before Ctrl-C.

    Raises
    ------
    KeyboardInterrupt
        There was no plan, or it was pressed twice.
    """
    begin = time.perf_counter()
    try:
        result = get_solver(solver).solve(problem, options)
    except KeyboardInterrupt:
        latest = line.latest
        if interrupts.count > 1 or latest is None or latest.plan is None:
            raise
        plan, wall_s = latest.plan(), time.perf_counter() - begin
        if options.objective == "latency":
            result = make_result(
                problem, plan, latest.bound_ns, solver, wall_s, was_interrupted=True
            )
        else:
            objective = latest.best_ns or 0
            result = SolveResult(plan, objective, latest.bound_ns, "interrupted", solver, wall_s)
    finally:
        line.close()
    if interrupts.count > 1:
        raise KeyboardInterrupt
    if interrupts.count > 0:
        print("note: interrupted; this is the best plan so far", file=sys.stderr, flush=True)
    return result


def _finish(
    arguments: argparse.Namespace, options: SolveOptions, problem: Problem, result: SolveResult
) -> None:
    graph, cluster = problem.graph, problem.cluster
    plan = explain(problem, result.plan)
    timeline = simulate(graph, cluster, problem.costs, plan, problem.native)
    if arguments.output:
        save_plan(plan, graph, cluster, arguments.output)
    if arguments.trace:
        write_trace(arguments.trace, graph, cluster, [TraceRun("predicted", plan, timeline)])
    if arguments.json:
        print_json(_to_json(problem, result, plan.reasons))
        return
    tables = (
        placement_table(graph, cluster, plan, timeline),
        device_table(graph, cluster, plan, timeline),
        channel_table(graph, cluster, plan, timeline),
        candidates_table([Candidate(*entry) for entry in result.candidates])
        if result.candidates
        else "",
        _summary(problem, result, options.objective, timeline.makespan_ns),
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


def _summary(problem: Problem, result: SolveResult, objective: str, makespan_ns: int) -> str:
    singles = single_makespans(problem).items()
    best_single = min(singles, key=lambda single: single[1], default=None)
    bound = result.bound_ns if objective == "latency" else None
    text = headline(problem.cluster, result.plan, makespan_ns, best_single, bound)
    if objective == "throughput":
        text += (
            f"\none item every {format_ns(result.objective_ns)} (bound "
            f"{format_ns(result.bound_ns)}, gap {100 * result.gap:.0f} %)"
        )
    return (
        f"{text}\n{cost_sources_line(problem.costs)}\n"
        f"solver {result.solver}: {result.status} after {result.wall_s:.2f} s"
    )


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
