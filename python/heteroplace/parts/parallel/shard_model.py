"""An ONNX file, a cluster and options -> degrees, ranked and run. Loaded late, as it needs TVM."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import tvm

from heteroplace.cli.models.input_shapes import INPUT_OPTION, TVMC_OPTION, Shapes, as_options
from heteroplace.files.sharding import ShardingRecord
from heteroplace.frontends import frontend_of, has_free_batch
from heteroplace.model.cluster import Cluster
from heteroplace.parts.parallel.sharding.degree_search import Grid, search_degrees
from heteroplace.parts.parallel.sharding.model_source import ModelSource
from heteroplace.parts.parallel.sharding.shard_options import ShardOptions
from heteroplace.parts.parallel.sharding.sharded_plan import (
    ShardedModel,
    options_of,
    replayed_model,
)

OPT_LEVEL = 3


@dataclass(frozen=True)
class Found:
    """What was found out about a model."""

    grid: Grid
    untrained: tuple[str, ...] = ()
    """What could be a weight and is not trained."""


def shard_file(
    path: Path,
    cluster: Cluster,
    options: ShardOptions,
    *,
    shapes: Shapes,
    csv: Path | None = None,
) -> Found:
    """Import a model, simulate its degrees, plan the best, and run some of them.

    Parameters
    ----------
    shapes
        Sizes of inputs that the model leaves open.
    csv
        A table of rows, in which those that are known are.

    Raises
    ------
    FrontendError, UnsupportedRelayError
        The file cannot be read, or the model not be cut.
    MissingCostError
        Devices are not in this machine, and shall be measured or run.
    HeteroPlaceError
        As `search_degrees` and `plan_model`.
    """
    logging.getLogger("autotvm").setLevel(logging.ERROR)  # that schedules are not tuned, is known
    with tvm.transform.PassContext(opt_level=OPT_LEVEL):
        source = import_source(path, options, shapes, INPUT_OPTION)
        grid = search_degrees(source, cluster, options, csv)
    untrained: tuple[str, ...] = ()
    if options.is_training:
        rows_of_best = grid.best.strategy.degrees.rows(options.batch)
        untrained = source.step(rows_of_best, options.batch).untrained
    return Found(grid, untrained)


def import_source(path: Path, options: ShardOptions, shapes: Shapes, option: str) -> ModelSource:
    """Import an ONNX model; for any number of rows where its inputs leave that open.

    Parameters
    ----------
    option
        How the command takes sizes, for messages.

    Raises
    ------
    FrontendError
        The file cannot be read, or sizes are missing or wrong.
    UnsupportedRelayError
        The rows cannot be followed through an op.
    """
    options.say(f"Reading {path}")
    frontend = frontend_of(path)
    is_free = has_free_batch(frontend.free_sizes(path, shapes))
    with as_options(option):
        imported = frontend.import_file(
            path, shapes=shapes, is_any_batch=is_free, keeps_weights=options.is_training
        )
    return ModelSource(imported.mod, imported.params, options, path.stem)


def replay_file(path: Path, record: ShardingRecord, where: str, shapes: Shapes) -> ShardedModel:
    """Import the model that a plan of `heteroplace shard` is for, and plan it as before.

    Parameters
    ----------
    where
        Path of the plan, for messages.

    Raises
    ------
    HeteroPlaceError
        As `import_source` and `replayed_model`.
    """
    return replayed_model(
        import_source(path, options_of(record), shapes, TVMC_OPTION), record, where
    )
