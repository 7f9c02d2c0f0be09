"""`heteroplace tune`: an ONNX model, a cluster and some time to faster kernels in the store.

Without TVM until it runs. Ctrl-C ends the search, and what was found is judged and kept; a second
one ends that too.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

from heteroplace.cli.models.given_inputs import add_input_sizes, input_arrays, input_sizes
from heteroplace.cli.models.onnx_model import BUILDER, check_model
from heteroplace.cli.problem_arguments import add_cluster, add_store
from heteroplace.cli.shared import Parsers, add_command, add_json, progress_display, show
from heteroplace.machine.local import open_cluster
from heteroplace.options import Argument, duration
from heteroplace.place_options import STORE_ON
from heteroplace.stage_log import StageLog

_BUDGET = "10m"


def add_commands(commands: Parsers) -> None:
    """Add the subcommand `tune`."""
    parser = add_command(
        commands,
        "tune",
        "search faster kernels for a model, and keep them for later placements",
        run,
        description="Search faster kernels for the CPUs of a cluster with TVM's MetaSchedule, "
        "where most is left to gain. Those that are faster than ours in a run of the model are "
        "kept in the store, where place, run, compile and tvmc find them by themselves. A search "
        "goes on from where an earlier one ended.",
    )
    parser.add_argument("model", metavar="MODEL.onnx", help="the model")
    add_cluster(parser)
    parser.add_argument(
        "--budget",
        metavar="TIME",
        type=Argument(duration),
        default=_BUDGET,
        help="time of the search, such as 30s, 10m or 1h (default: 10m); the model is measured "
        "before and after it",
    )
    add_input_sizes(parser, "whose sizes count")
    add_store(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Say what is left to gain, search, and print what was gained.

    Raises
    ------
    HeteroPlaceError
        An input is wrong or missing: told before any work; or see `heteroplace.tune`.
    """
    model = Path(arguments.model)
    check_model(model)
    sizes = input_sizes(model, input_arrays(arguments), arguments)
    cluster = open_cluster(arguments.cluster)
    builder = importlib.import_module(BUILDER)
    display = progress_display(arguments)

    def show_outlook(outlook: Any) -> None:
        display.close()
        if not arguments.json:
            print(f"{outlook.text()}\n", flush=True)
        display.stage("Searching faster kernels", arguments.budget)

    with display:
        report = builder.tune_model(
            model,
            sizes,
            cluster,
            StageLog(display=display),
            budget=arguments.budget,
            store=arguments.store or STORE_ON,
            on_outlook=show_outlook,
            on_step=lambda step: display.remark(describe_step(step)),
        )
    show(arguments, report.to_json, report.text)


def describe_step(step: Any) -> str:
    """Return how far a search is, as text."""
    return (
        f"{step.trials} schedules measured, {step.num_faster} kernels faster alone; next: {step.op}"
    )
