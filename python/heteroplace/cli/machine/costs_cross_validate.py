"""`heteroplace costs cross-validate`: how far are predicted times off for the machine at hand?"""

from __future__ import annotations

import argparse

from heteroplace.cli.graph_problem import read_costs
from heteroplace.cli.problem_arguments import add_problem
from heteroplace.cli.shared import Parsers, add_command, add_json, show
from heteroplace.costs.cross_validation import (
    HeldOutCell,
    cross_validate,
    cross_validation_table,
)
from heteroplace.files.graph_file import load_graph
from heteroplace.machine.local import open_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.report.tables import cost_sources_line


def add_cross_validate(commands: Parsers) -> None:
    """Add the subcommand `cross-validate` to those of `costs`."""
    parser = add_command(
        commands,
        "cross-validate",
        "predict what was measured, and compare",
        run,
        description="Predict each measured device from the others, and each measured kernel from "
        "the others of its device, by every method that applies; print the errors.",
    )
    add_problem(parser)
    parser.add_argument("--no-ops", action="store_true", help="leave out the errors by type of op")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Cross-validate and print."""
    cluster, read = open_cluster(arguments.cluster), load_graph(arguments.graph)
    costs = read_costs(arguments.costs, read, cluster)
    validation = cross_validate(read.graph, cluster, costs)
    show(
        arguments,
        lambda: {
            "by_device": [_to_json(t, read.graph, cluster) for t in validation.by_device],
            "by_kernel": [_to_json(t, read.graph, cluster) for t in validation.by_kernel],
        },
        lambda: (
            f"{cost_sources_line(costs)}\n\n"
            f"{cross_validation_table(cluster, validation, not arguments.no_ops)}"
        ),
    )


def _to_json(trial: HeldOutCell, graph: TaskGraph, cluster: Cluster) -> dict[str, object]:
    return {
        "method": trial.method,
        "task": graph.tasks[trial.task].name,
        "device": cluster.devices[trial.device].name,
        "op": trial.op,
        "predicted_ns": round(trial.predicted_ns),
        "measured_ns": trial.measured_ns,
    }
