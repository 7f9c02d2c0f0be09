"""`heteroplace report`: a plan, solution or compiled model -> one HTML page that shows it.

Needs no TVM but to measure.
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np

import heteroplace
from heteroplace.cli.onnx_model import solution_json
from heteroplace.cli.place import read_costs
from heteroplace.cli.shared import Parsers, add_command, add_json, check_writable, print_json
from heteroplace.errors import HeteroPlaceError
from heteroplace.files.graph import load_graph
from heteroplace.files.kinds import read_known_file
from heteroplace.files.plan import plan_from_json
from heteroplace.files.sharding import load_sharding
from heteroplace.files.solution import load_solution
from heteroplace.machine.local import open_cluster
from heteroplace.model.memory import MemoryUse
from heteroplace.model.solution import Solution
from heteroplace.native.compiled_file import CompiledFile
from heteroplace.report.notes import solution_notes
from heteroplace.report.tables import solution_headline
from heteroplace.solve import Problem, SolveOptions
from heteroplace.solve.explain import explain
from heteroplace.solve.judge import replay
from heteroplace.solve.network import solution_of
from heteroplace.solve.problem import OBJECTIVES
from heteroplace.solve.report import write_report
from heteroplace.solve.routed_replay import replay_routed

_OF_A_PLAN = ("graph", "cluster", "costs", "objective")


def add_commands(commands: Parsers) -> None:
    """Add the subcommand `report`."""
    parser = add_command(
        commands,
        "report",
        "show a plan as a page",
        run,
        description="Write one self-contained HTML page that shows a plan, a solution or a "
        "compiled model: how fast and against what, timeline, memory, the network by device, "
        "links, why each task is where it is and what moving it would cost.",
    )
    parser.add_argument("file", metavar="FILE", help="plan (JSON), solution, or compiled model")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the page; default: FILE with the ending .html"
    )
    parser.add_argument("--graph", metavar="FILE", help="graph that a plan file is for")
    parser.add_argument("--cluster", metavar="FILE|NAME", help="cluster that a plan file is for")
    parser.add_argument(
        "--costs", metavar="FILE", help="costs for a plan file; default: the times in its graph"
    )
    parser.add_argument(
        "--measure",
        type=int,
        metavar="N",
        help="of a compiled model: run it N times here (it needs TVM), and show what was measured "
        "beside what was predicted",
    )
    parser.add_argument(
        "--inputs",
        metavar="FILE",
        help="arrays by name (.npz) to measure with; default: random numbers, and zeros where the "
        "model takes integers",
    )
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        help="what a plan file was made for, which it does not say; default: latency",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Read the file, write the page, print the headline."""
    output = arguments.output or str(Path(arguments.file).with_suffix(".html"))
    check_writable(output)
    kind, value = read_known_file(arguments.file)
    _check_options(arguments, kind)
    command = _command(arguments, output)
    if arguments.measure is not None:
        _measure(arguments, output, command)
        return
    properties = {"heteroplace": heteroplace.__version__}
    memory: tuple[MemoryUse, ...] = ()
    if kind == "model":
        manifest = CompiledFile(arguments.file).manifest()
        solution, memory = manifest.solution, manifest.memory
        properties |= manifest.properties
    elif kind == "solution":
        solution = load_solution(arguments.file)
    elif kind == "sharding":
        solution = load_sharding(arguments.file).solution
    else:
        solution = _solution_of_plan(arguments, value)
    write_report(solution, output, memory=memory, properties=properties, command=command)
    _say(arguments, solution, output)


def _say(arguments: argparse.Namespace, solution: Solution, output: str) -> None:
    size = Path(output).stat().st_size
    if arguments.json:
        print_json(
            {
                "report": output,
                "bytes": size,
                "headline": solution_headline(solution),
                "notes": list(solution_notes(solution)),
                "solution": solution_json(solution),
            }
        )
        return
    print(solution_headline(solution))
    for note in solution_notes(solution):
        print(f"note: {note}")
    print(f"report: {output} ({size / 1e6:.2f} MB); open it in a browser")


def _check_options(arguments: argparse.Namespace, kind: str) -> None:
    path = arguments.file
    if kind not in ("plan", "solution", "sharding", "model"):
        raise HeteroPlaceError(
            f"{path}: is a {kind} file; expected a plan, a solution or a compiled model. Make a "
            f"plan by `heteroplace place`"
        )
    given = [name for name in _OF_A_PLAN if getattr(arguments, name) is not None]
    if kind != "plan" and given:
        raise HeteroPlaceError(
            f"{path}: --{given[0]} is for plan files; a {kind} file has its own, so leave it out"
        )
    if kind != "model" and arguments.measure is not None:
        raise HeteroPlaceError(
            f"{path}: --measure runs a compiled model, and this is a {kind} file; compile it by "
            f"`tvmc compile --placement`"
        )
    if arguments.measure is None and arguments.inputs is not None:
        raise HeteroPlaceError("--inputs is for measuring; give --measure too")
    if arguments.measure is not None and arguments.measure < 1:
        raise HeteroPlaceError(f"--measure {arguments.measure}: expected at least 1 run")
    if kind == "plan" and (arguments.graph is None or arguments.cluster is None):
        raise HeteroPlaceError(
            f"{path}: a plan file says where tasks run and not how long they take; give --graph "
            f"and --cluster, which it refers to, and --costs if the graph has no times"
        )


def _measure(arguments: argparse.Namespace, output: str, command: str) -> None:
    """Load a compiled model, run it, write the page."""
    executor = heteroplace.load(arguments.file)
    given = _read_arrays(arguments.inputs)
    random = np.random.default_rng(0)
    inputs = {}
    for name, shape, dtype in executor.inputs:
        made = random.random(shape) if dtype.startswith("float") else np.zeros(shape)
        inputs[name] = given[name] if name in given else made.astype(dtype)
    executor.run(inputs)
    executor.report(output, num_runs=arguments.measure, command=command)
    _say(arguments, executor.solution, output)


def _read_arrays(path: str | None) -> dict[str, np.ndarray]:
    if path is None:
        return {}
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError, TypeError) as err:
        # A pickle is a ValueError; a bare array (.npy) cannot be entered by `with`.
        raise HeteroPlaceError(
            f"--inputs {path}: cannot be read as .npz ({err}); write it by numpy.savez(path, "
            f"input_name=array, ...)"
        ) from err


def _solution_of_plan(arguments: argparse.Namespace, value: object) -> Solution:
    """A plan file with all it refers to, judged again."""
    read, cluster = load_graph(arguments.graph), open_cluster(arguments.cluster)
    graph = read.graph
    plan = plan_from_json(value, graph, cluster, arguments.file)
    costs = read_costs(arguments.costs, read, cluster)
    objective = arguments.objective or "latency"
    options = SolveOptions(objective=objective)
    if graph.routers:
        return replay_routed(graph, cluster, costs, options, plan, None, (), None)
    problem = Problem(graph, cluster, costs)
    result = replay(problem, plan, options)
    if not plan.reasons:
        result = replace(result, plan=explain(problem, plan, objective))
    return solution_of(problem, result, objective)


def _command(arguments: argparse.Namespace, output: str) -> str:
    words = ["heteroplace", "report", arguments.file]
    for name in _OF_A_PLAN:
        value = getattr(arguments, name)
        words += [] if value is None else [f"--{name}", str(value)]
    for name in ("measure", "inputs"):
        value = getattr(arguments, name)
        words += [] if value is None else [f"--{name}", str(value)]
    return shlex.join([*words, "-o", output])
