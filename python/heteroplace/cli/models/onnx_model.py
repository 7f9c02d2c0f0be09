"""What commands that take an ONNX model share: checks, progress, what is printed. No TVM."""

from __future__ import annotations

import argparse
from pathlib import Path

from heteroplace.cli.shared import add_written
from heteroplace.errors import FrontendError
from heteroplace.files.no_file import why_no_file
from heteroplace.frontends import frontend_of
from heteroplace.model.demands import layers_of
from heteroplace.model.solution import Solution
from heteroplace.report.headline import solution_headline
from heteroplace.report.layer_precisions import precision_json, precision_line
from heteroplace.report.notes import notes_text, solution_notes
from heteroplace.report.tables import cost_sources_line, device_table, placement_table
from heteroplace.solve.objective import THROUGHPUT
from heteroplace.solve.problem import OBJECTIVES
from heteroplace.tvm_bridge import require_tvm

BUILDER = "heteroplace.cli.models.model_builder"
"""What places and compiles; loaded when that is asked for, as it needs TVM."""


def add_annotation_options(parser: argparse.ArgumentParser, *, writes: bool) -> None:
    """Add --ignore-annotations, and --annotate-onnx to a command that `writes` files."""
    parser.add_argument(
        "--ignore-annotations",
        action="store_true",
        help="do not keep nodes on the devices that the model names for them (IR version 11)",
    )
    if writes:
        add_written(
            parser,
            "--annotate-onnx",
            metavar="FILE.onnx",
            help="write the model with the device of each node, which Netron shows",
        )


def check_model(path: Path) -> None:
    """Raise unless there is such a file, and what reads and compiles models is installed.

    Raises
    ------
    FrontendError
        There is no such file.
    MissingPackageError
        TVM or onnx is not installed.
    """
    check_model_file(path)
    check_importer(path)


def check_model_file(path: Path) -> None:
    """Raise FrontendError unless there is such a file."""
    if not path.is_file():
        raise FrontendError(f"{path}: {why_no_file(path)}; give the path of an ONNX model")


def check_importer(path: Path) -> None:
    """Raise MissingPackageError unless TVM and what reads this kind of model are installed."""
    require_tvm()
    frontend_of(path).check_installed()


def solution_text(solution: Solution) -> str:
    """Return the notes and tables of a solution, and the headline."""
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    timeline = solution.timeline
    tables = (
        notes_text(solution),
        placement_table(graph, cluster, plan, timeline),
        device_table(graph, cluster, plan, timeline),
        solution_headline(solution),
        precision_line(solution),
        cost_sources_line(solution.costs),
    )
    return "\n\n".join(filter(None, tables))


def solution_json(solution: Solution) -> dict[str, object]:
    """Return what a solution says, for `--json`: the same of a graph file and of a model.

    Compare times of one kind only. `simulated_ns` is a run without interference. `expected_ns` and
    `expected_singles_ns` are runs with the interference that was measured, or without where none
    was. `objective_ns`, its bound and its single devices are what the solver minimised.
    """
    devices = solution.plan.devices_of_tasks(len(solution.graph.tasks))
    # For throughput the single devices are known by their time per item only.
    expected_singles = dict(solution.predicted_singles) if solution.item_ns is None else None
    return {
        "objective": OBJECTIVES[0] if solution.item_ns is None else THROUGHPUT,
        "objective_ns": solution.objective_ns,
        "objective_bound_ns": solution.bound_ns,
        "gap": solution.gap_ratio,
        "simulated_ns": solution.predicted_ns,
        "expected_ns": solution.expected_ns,
        "others_cores": solution.others_cores,
        "notes": solution_notes(solution),
        "devices_used": list(solution.devices_used),
        "objective_singles_ns": dict(solution.singles),
        "expected_singles_ns": expected_singles,
        "placement": {
            task.name: [solution.cluster.devices[device].name for device in devices[index]]
            for index, task in enumerate(solution.graph.tasks)
        },
        "layers": {task.name: list(layers_of(task)) for task in solution.graph.tasks},
        "reasons": dict(
            zip((task.name for task in solution.graph.tasks), solution.plan.reasons, strict=False)
        ),
        "candidates": [
            {"name": name, "objective_ns": objective_ns}
            for name, objective_ns in solution.candidates
        ],
        **precision_json(solution),
    }
