"""`heteroplace shard`: an ONNX model, a cluster and a batch to the best mix of parallelism.

The table has a row for each mix of data (D), tensor (T) and pipeline (P) parallelism with K
microbatches. TVM is loaded when it runs.
"""

from __future__ import annotations

import argparse
import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from heteroplace.cli.models.given_inputs import add_input, input_arrays, input_shapes
from heteroplace.cli.models.onnx_model import check_importer, check_model_file
from heteroplace.cli.problem_arguments import add_cluster
from heteroplace.cli.shared import (
    Parsers,
    add_command,
    add_json,
    add_output_file,
    add_written,
    check_writable,
    progress_of,
    show,
    written_text,
)
from heteroplace.errors import ShardingError
from heteroplace.files.sharding import save_sharding
from heteroplace.machine.local import open_cluster
from heteroplace.options import add_arguments, count, read_arguments

_SHARDER = "heteroplace.parts.parallel.shard_model"
_OPTIONS = "heteroplace.parts.parallel.sharding.shard_options"
_TABLE = "heteroplace.parts.parallel.shard_table"
_OPTIMIZER = "sgd:0.1"
_TOP = 10


def add_commands(commands: Parsers) -> None:
    """Add the subcommand `shard`."""
    options = importlib.import_module(_OPTIONS)
    parser = add_command(
        commands,
        "shard",
        "share a model by several devices: data, tensor and pipeline parallelism",
        run,
        description="Simulate mixes of data (D), tensor (T) and pipeline (P) parallelism with K "
        "microbatches, and write the plan of the fastest that fits. Each device of the cluster is "
        "a rank; those of different memories come first.",
    )
    parser.add_argument("model", metavar="MODEL.onnx", help="the model")
    add_cluster(parser)
    add_arguments(parser, options.ShardOptions)
    parser.add_argument(
        "--train",
        action="store_true",
        help=f"plan a step of training, not inference (--optimizer; default: {_OPTIMIZER})",
    )
    add_input(parser, "whose sizes count; a free first one is one row of the batch")
    parser.add_argument(
        "--top", type=count, default=_TOP, metavar="N", help=f"rows of the table; default: {_TOP}"
    )
    help = "table of all rows; those that it has already are not simulated again"
    add_written(parser, "--csv", help=help)
    add_output_file(parser, "write the plan (JSON), for tvmc compile --placement")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Search, print the table, and write the files that were asked for.

    Raises
    ------
    HeteroPlaceError
        An input is wrong or missing, or an output could not be written: told before any work.
        Nothing fits; devices are missing or not connected.
    """
    options = _options(arguments)
    model = Path(arguments.model)
    check_model_file(model)
    check_writable(arguments.output, arguments.csv)
    arrays = input_arrays(arguments)
    shapes = {name: array.shape for name, array in arrays.items()} | input_shapes(arguments)
    cluster = open_cluster(arguments.cluster)
    check_importer(model)
    sharder, table = importlib.import_module(_SHARDER), importlib.import_module(_TABLE)
    with progress_of(arguments) as log:
        chosen_sharding = sharder.shard_file(
            model,
            cluster,
            replace(options, progress=log),
            shapes=shapes,
            csv=None if arguments.csv is None else Path(arguments.csv),
        )
    if arguments.output:
        save_sharding(chosen_sharding.grid.best.record, arguments.output)
    written = written_text(rows=arguments.csv, plan=arguments.output)
    show(
        arguments,
        lambda: table.to_json(chosen_sharding),
        lambda: table.text(chosen_sharding, arguments.top) + written,
    )


def _options(arguments: argparse.Namespace) -> Any:
    """The options of the command line; wrong ones are told before TVM is loaded."""
    options = importlib.import_module(_OPTIONS)
    given = read_arguments(options.ShardOptions, arguments)
    if arguments.train:
        given.setdefault("optimizer", _OPTIMIZER)
    elif "optimizer" in given:
        raise ShardingError("--optimizer is about training; add --train, or leave it out")
    return options.read_shard_options(given)
