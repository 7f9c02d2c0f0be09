"""`heteroplace place`: a graph file and a cluster file to a plan, with tables. Needs no TVM."""

from __future__ import annotations

import argparse
import gc
import importlib
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from heteroplace.cli.graph_problem import read_problem
from heteroplace.cli.models.entry_sizes import (
    add_entries,
    add_more_memory,
    chosen_entries,
    show_entries,
)
from heteroplace.cli.models.given_inputs import (
    add_input_sizes,
    input_arrays,
    input_sizes,
    measured_inputs,
)
from heteroplace.cli.models.kernel_cache import keeping_kernels
from heteroplace.cli.models.onnx_model import (
    BUILDER,
    add_annotation_options,
    check_model,
    solution_json,
    solution_text,
)
from heteroplace.cli.problem_arguments import add_problem
from heteroplace.cli.shared import (
    Parsers,
    add_command,
    add_json,
    add_output_file,
    add_written,
    check_writable,
    given_flags,
    progress_display,
    show,
)
from heteroplace.errors import HeteroPlaceError, SolverError
from heteroplace.files.plan_file import save_plan
from heteroplace.interrupts import Interrupts
from heteroplace.machine.local import LOCAL, open_cluster
from heteroplace.model.collector import paused_collector
from heteroplace.model.solution import Solution
from heteroplace.options import add_arguments, from_arguments, read_arguments
from heteroplace.place_options import (
    GRAPH_OPTIONS,
    MODEL_OPTIONS,
    PlaceOptions,
    check_options,
    read_options,
)
from heteroplace.progress import SolverProgress
from heteroplace.report.headline import solution_headline
from heteroplace.report.notes import notes_text
from heteroplace.report.tables import (
    Candidate,
    candidates_table,
    channel_table,
    cost_sources_line,
    device_table,
    placement_table,
)
from heteroplace.simulate.simulator import simulate
from heteroplace.solve import Problem, SolveOptions, SolveResult, get_solver
from heteroplace.solve.judge import replay
from heteroplace.solve.network_solution import solution_of
from heteroplace.solve.objective import THROUGHPUT
from heteroplace.solve.plan_in import read_plan_in
from heteroplace.solve.plan_reasons import Reasons, explain_s
from heteroplace.solve.problem import check_gain
from heteroplace.solve.solve_report import SolverRecord, write_report
from heteroplace.stage_log import StageLog

RENAMED = {"time_limit": "budget"}
"""Options of solvers that the commands call otherwise."""
KEPT = ("time_limit",)
"""Of options that commands call otherwise, those that may be called as everywhere, too."""
_FLAGS_OF_MODELS = [name for name in MODEL_OPTIONS if name != "inputs"]
"""The arrays of --input are the option `inputs`."""
_REPORT_S_PER_TASK = 1e-5
"""What tables of a plan take; the budget is for all that follows the reading of the files."""


def add_commands(commands: Parsers) -> None:
    """Add the subcommand `place`."""
    parser = add_command(
        commands,
        "place",
        "place a model or a task graph, and compile nothing",
        run,
        description="Place a task graph (--graph), or an ONNX model, on a cluster, and print where "
        "everything goes.",
    )
    parser.set_defaults(fail=parser.error)
    parser.add_argument("model", nargs="?", metavar="MODEL.onnx", help="a model; else --graph")
    add_input_sizes(parser)
    add_entries(parser)
    add_more_memory(parser)
    add_annotation_options(parser, writes=True)
    add_problem(parser, may_be_model=True)
    add_arguments(parser, PlaceOptions, names=GRAPH_OPTIONS)
    add_arguments(parser, SolveOptions, renamed=RENAMED, own_names=KEPT)
    group = parser.add_argument_group("of models", "for ONNX models only, not for task graphs")
    add_arguments(group, PlaceOptions, renamed=RENAMED, names=_FLAGS_OF_MODELS)
    add_json(parser)
    add_output_file(
        parser,
        "write the plan with its graph, cluster and costs (JSON), for explain, diff, simulate, "
        "report and --plan-in",
    )
    add_written(parser, "--plan", help="write the plan alone (JSON)")
    add_written(parser, "--trace", help="write the timeline as a Chrome trace")
    add_written(parser, "--report", help="write a page that shows the plan (HTML)")


def run(arguments: argparse.Namespace) -> None:
    """Solve, print, and write the files that were asked for.

    The first Ctrl-C ends the search; its best plan is taken. The second one ends the program.
    """
    check_writable(
        *(arguments.output, arguments.plan, arguments.trace, arguments.report),
        arguments.annotate_onnx,
    )
    if (arguments.model, arguments.graph, arguments.cluster) == (None, None, None):
        arguments.fail("give a task graph (--graph graph.json) or an ONNX model (model.onnx)")
    if (arguments.model is None) == (arguments.graph is None):
        raise HeteroPlaceError(
            "give either a task graph (--graph graph.json) or an ONNX model (model.onnx) to place"
        )
    if arguments.model is not None:
        _run_model(arguments)
        return
    _check_of_graph(arguments)
    display = progress_display(arguments)
    unit = " per item" if arguments.objective == THROUGHPUT else ""
    record = SolverRecord(SolverProgress(display, unit))
    options = from_arguments(SolveOptions, arguments, RENAMED, progress=record)
    place = PlaceOptions(
        costs=Path(arguments.costs or arguments.graph),
        **read_arguments(PlaceOptions, arguments, names=GRAPH_OPTIONS),
    )
    check_options(place, options)
    if place.missing == "measure":
        raise SolverError(
            f"missing='measure' runs kernels, and {arguments.graph} is a task graph, which has "
            f"none; give --missing predict or estimate, or measure the model by `heteroplace "
            f"profile`"
        )
    with paused_collector():
        problem = read_problem(arguments, place)
        check_gain(problem.costs, options)
        plan = None
        if place.plan_in is not None:
            plan = read_plan_in(place.plan_in).plan_for(problem.graph, problem.cluster)
        gc.freeze()  # Hundreds of thousands of values that stay, and need not be walked again.
    try:
        with Interrupts() as interrupts:
            if plan is None:
                with display:
                    display.stage("Placing", options.time_limit_s)
                    result = _solve(problem, place.solver, options, interrupts)
                if interrupts.count > 0:
                    print("note: interrupted; this is the best plan so far", file=sys.stderr)
            else:
                result = replay(problem, plan, options)
            interrupts.ends_work = False
            _finish(arguments, options, problem, result, record)
    finally:
        gc.unfreeze()


def _check_of_graph(arguments: argparse.Namespace) -> None:
    """Raise HeteroPlaceError where something is said of a task graph that is for models."""
    flags = ["annotate-onnx", "ignore-annotations", "input", "size", "batch", "fix"]
    flags += ["entry", "workload", "more-memory"]
    flags += [RENAMED.get(name, name).replace("_", "-") for name in _FLAGS_OF_MODELS]
    others = given_flags(arguments, flags)
    if others:
        raise HeteroPlaceError(
            f"{', '.join(others)}: for ONNX models only; leave it out, or give a model "
            f"(model.onnx) in place of --graph"
        )


def _run_model(arguments: argparse.Namespace) -> None:
    """Place an ONNX model, print, and write the files that were asked for."""
    model = Path(arguments.model)
    names = (*GRAPH_OPTIONS, *_FLAGS_OF_MODELS, "costs")
    given = read_arguments(PlaceOptions, arguments, renamed=RENAMED, names=names)
    given |= read_arguments(SolveOptions, arguments, renamed=RENAMED)
    read_options(given)  # wrong ones are refused before anything slow begins
    entries = chosen_entries(arguments)
    check_model(model)
    if entries:
        show_entries(entries, given, arguments)
        return
    if arguments.more_memory:
        raise HeteroPlaceError(
            "--more-memory is about entries that are placed together; give --entry, or ask "
            "`heteroplace simulate PLAN --memory NAME=SIZE --solve` of a plan for one size"
        )
    arrays = input_arrays(arguments)
    sizes = input_sizes(model, arrays, arguments)
    given |= measured_inputs(arrays, sizes)
    builder = importlib.import_module(BUILDER)
    if arguments.annotate_onnx:
        builder.check_annotated(model, arguments.annotate_onnx)
    with keeping_kernels(), progress_display(arguments) as display:
        record = SolverRecord(SolverProgress(display))
        solution = builder.place_model(
            model,
            sizes,
            open_cluster(arguments.cluster or LOCAL),
            {**given, "solver_progress": record},
            StageLog(display=display),
            is_annotated=not arguments.ignore_annotations,
        )
    _write_files(arguments, solution, record)
    if arguments.annotate_onnx:
        builder.write_annotated(model, arguments.annotate_onnx, solution)
    show(arguments, lambda: solution_json(solution), lambda: solution_text(solution))


def _write_files(arguments: argparse.Namespace, solution: Solution, record: SolverRecord) -> None:
    """Write the files of a solution that were asked for."""
    if arguments.output:
        solution.save(arguments.output)
    if arguments.plan:
        save_plan(solution.plan, solution.graph, solution.cluster, arguments.plan)
    if arguments.trace:
        solution.trace(arguments.trace)
    if arguments.report:
        write_report(
            solution,
            arguments.report,
            progress=record.points,
            command=shlex.join(sys.argv),
            file=arguments.model or arguments.graph,
        )


def _solve(
    problem: Problem, solver: str, options: SolveOptions, interrupts: Interrupts
) -> SolveResult:
    """Return the solver's plan, or the best one until Ctrl-C.

    Raises
    ------
    KeyboardInterrupt
        There was no plan, or it was pressed twice.
    """
    report_s = _REPORT_S_PER_TASK * len(problem.graph.tasks) + explain_s(problem)
    result = get_solver(solver).solve(problem, options.leaving(report_s))
    if interrupts.count > 1:
        raise KeyboardInterrupt
    return result


def _finish(
    arguments: argparse.Namespace,
    options: SolveOptions,
    problem: Problem,
    result: SolveResult,
    record: SolverRecord,
) -> None:
    graph, cluster, plan = problem.graph, problem.cluster, result.plan
    timeline = simulate(graph, cluster, problem.costs, plan, problem.native)
    reason = Reasons(problem, plan, options.objective, timeline).of
    wants_reasons = arguments.output, arguments.plan, arguments.report, arguments.json
    if any(wants_reasons):
        plan = replace(plan, reasons=tuple(map(reason, range(len(graph.tasks)))))
    solution = solution_of(problem, replace(result, plan=plan), options.objective, timeline)
    _write_files(arguments, solution, record)
    show(
        arguments,
        lambda: _to_json(solution, result),
        lambda: _to_text(problem, solution, result, reason),
    )


def _to_text(
    problem: Problem, solution: Solution, result: SolveResult, reason: Callable[[int], str]
) -> str:
    graph, cluster, plan, timeline = (
        problem.graph,
        problem.cluster,
        solution.plan,
        solution.timeline,
    )
    tables = (
        notes_text(solution),
        placement_table(graph, cluster, plan, timeline, reason=reason),
        device_table(graph, cluster, plan, timeline),
        channel_table(graph, cluster, plan, timeline),
        candidates_table([Candidate(*entry) for entry in result.candidates])
        if result.candidates
        else "",
        _summary(solution, result),
    )
    return "\n\n".join(table for table in tables if table)


def _summary(solution: Solution, result: SolveResult) -> str:
    return (
        f"{solution_headline(solution)}\n{cost_sources_line(solution.costs)}\n"
        f"solver {result.solver}: {result.status} after {result.wall_s:.2f} s"
    )


def _to_json(solution: Solution, result: SolveResult) -> dict[str, object]:
    """What the solution says, and the solver of itself."""
    return solution_json(solution) | {
        "status": result.status,
        "solver": result.solver,
        "wall_s": result.wall_s,
        "candidates": [
            {"name": name, "objective_ns": objective, "note": note}
            for name, objective, note in result.candidates
        ],
    }
