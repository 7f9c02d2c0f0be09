"""What a command calls a plan -> the solution: of one file, or of a plan and what it refers to."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from heteroplace.cli.graph_problem import read_costs
from heteroplace.cli.models.cached_model import run_cached
from heteroplace.cli.models.given_inputs import InputSizes, add_input, inputs_of_model
from heteroplace.errors import HeteroPlaceError, PlanError
from heteroplace.files.fields.kinds import read_known_file
from heteroplace.files.graph_file import load_graph
from heteroplace.files.manifest import Manifest
from heteroplace.files.plan_file import plan_from_json
from heteroplace.files.sharding import load_sharding
from heteroplace.files.solution_file import load_solution
from heteroplace.machine.local import open_cluster
from heteroplace.model.solution import Solution
from heteroplace.native.compiled_file import read_manifest
from heteroplace.registry import load_plugin, load_plugins
from heteroplace.solve import Problem, SolveOptions, solve_network
from heteroplace.solve.problem import OBJECTIVES
from heteroplace.stage_log import StageLog

Result = TypeVar("Result")


def add_solution_options(parser: argparse.ArgumentParser) -> None:
    """Add --graph, --cluster, --costs and --objective, for plans that are files of their own."""
    add_input(parser, "whose sizes count where the file is a model")
    group = parser.add_argument_group(
        "of a plan file", "a solution (place -o) and a compiled model hold these themselves"
    )
    group.add_argument("--graph", metavar="FILE", help="task graph (JSON) that the plan is for")
    group.add_argument(
        "--cluster", metavar="FILE|NAME", help="cluster that the plan, or a model, is for"
    )
    group.add_argument(
        "--costs", metavar="FILE", help="cost table (JSON); default: the times in the graph file"
    )
    group.add_argument(
        "--objective",
        dest="made_for",
        choices=OBJECTIVES,
        help="what the plan was made for; default: latency",
    )


def read_solution(path: str, arguments: argparse.Namespace) -> Solution:
    """Return the solution of a file: a solution, a compiled model, what `heteroplace shard` wrote,
    a model, or a plan with the options of `add_solution_options`.

    Raises
    ------
    PlanError
        It is of another kind, or a plan whose graph and cluster are not given.
    HeteroPlaceError
        A file cannot be read, or has faults.
    """
    return with_program(path, arguments, lambda *program: read_with_manifest(*program)[0])


def with_program(
    path: str, arguments: argparse.Namespace, use: Callable[[str, argparse.Namespace], Result]
) -> Result:
    """Call `use` with a file that holds a plan and the options about it; return its result.

    A model is first compiled for --cluster, as `heteroplace run` does it without other options,
    unless the cache has its compiled form. That holds its cluster, so `use` gets none.

    Raises
    ------
    HeteroPlaceError
        The model cannot be placed or compiled.
    """
    if Path(path).suffix.lower() not in {
        suffix for frontend in load_plugins("frontends").values() for suffix in frontend.suffixes
    }:
        if arguments.input and not getattr(arguments, "measure", None):
            raise HeteroPlaceError(
                f"{path}: --input is for models, and this is none; leave it out, or give a model"
            )
        return use(path, arguments)
    settings = argparse.Namespace(
        cluster=arguments.cluster,
        rebuild=False,
        ignore_annotations=False,
        verbose=arguments.verbose,
        quiet=arguments.quiet,
    )
    rest = argparse.Namespace(**{**vars(arguments), "cluster": None})
    shapes, values, _ = inputs_of_model(Path(path), arguments)
    sizes = InputSizes(shapes, values=values, command="compile")
    _, result = run_cached(
        Path(path), sizes, {}, settings, lambda program: use(str(program.path), rest), StageLog()
    )
    return result


def read_with_manifest(
    path: str, arguments: argparse.Namespace
) -> tuple[Solution, Manifest | None]:
    """Return what `read_solution` does, and all that a compiled model says of itself.

    Raises
    ------
    PlanError, HeteroPlaceError
        As `read_solution`.
    """
    kind, value = read_known_file(path)
    if kind == "plan":
        return _of_plan(path, value, arguments), None
    given = given_of_plan(arguments)
    if given:
        raise HeteroPlaceError(
            f"{path}: {', '.join(given)} {'is' if len(given) == 1 else 'are'} for plan files, and "
            f"this is a {kind} file, which holds what its plan is for; leave that out"
        )
    if kind == "solution":
        return load_solution(path), None
    if kind == "sharding":
        return load_sharding(path).solution, None
    if kind == "model":
        manifest = read_manifest(path)
        return manifest.solution, manifest
    raise PlanError(
        f"{path}: expected a plan, a solution or a compiled model, got a {kind} file; make one by "
        f"`heteroplace place ... -o solution.json`, or `heteroplace compile model.onnx`"
    )


def given_of_plan(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of `add_solution_options` that were given, and their values."""
    values = {"--" + name: getattr(arguments, name) for name in ("graph", "cluster", "costs")}
    values["--objective"] = arguments.made_for
    return {name: value for name, value in values.items() if value is not None}


def _of_plan(path: str, value: object, arguments: argparse.Namespace) -> Solution:
    if arguments.graph is None or arguments.cluster is None:
        raise PlanError(
            f"{path}: a plan file refers to its graph and its cluster; give --graph FILE and "
            f"--cluster FILE (and --costs FILE), or a file that holds all of them: `heteroplace "
            f"place ... -o FILE` writes one"
        )
    read, cluster = load_graph(arguments.graph), open_cluster(arguments.cluster)
    plan = plan_from_json(value, read.graph, cluster, path)
    costs = read_costs(arguments.costs, read, cluster)
    options = SolveOptions(objective=arguments.made_for or "latency")
    if read.graph.routers:
        replay = load_plugin("routers", "replay")
        solution: Solution = replay(read.graph, cluster, costs, options, plan)
        return solution
    return solve_network(Problem(read.graph, cluster, costs), options, plan=plan)
