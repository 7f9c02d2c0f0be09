"""An ONNX file, a cluster and options -> degrees, ranked and run. Loaded late, as it needs TVM."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import tvm
from tvm.driver.tvmc.shape_parser import parse_shape_string

from heteroplace import pipeline
from heteroplace.errors import FrontendError, MissingCostError
from heteroplace.model.cluster import Cluster
from heteroplace.model.demands import check_reachable
from heteroplace.relay.frontend.importer import from_onnx
from heteroplace.relay.frontend.onnx_batch import SYMBOLIC, free_batch
from heteroplace.run.devices import missing_devices
from heteroplace.run.executor import Executor
from heteroplace.sharding.inputs import made_up_inputs
from heteroplace.sharding.options import ShardOptions
from heteroplace.sharding.plan import ShardedModel, plan_model
from heteroplace.sharding.search import KERNELS_OF_BEST, row_of, search_degrees
from heteroplace.sharding.source import ModelSource
from heteroplace.transforms.degrees import Degrees
from heteroplace.transforms.search_rows import SearchRow

OPT_LEVEL = 3
_TURNS = 5
"""Rounds in which the programs are run, one after the other."""
_ROUND_NS = 200_000_000
_MOST_RUNS = 50


@dataclass(frozen=True)
class Found:
    """What was found out about a model."""

    rows: tuple[SearchRow, ...]
    """Of all degrees."""
    best: ShardedModel
    """The plan that is written."""
    measured_ns: Mapping[Degrees, int] = field(default_factory=dict)
    """Median of real runs of the whole batch in the quietest turn, by degrees; empty: none."""
    untrained: tuple[str, ...] = ()
    """What could be a weight and is not trained."""


def shard_file(
    path: Path,
    cluster: Cluster,
    options: ShardOptions,
    *,
    shapes: str | None = None,
    csv: Path | None = None,
    num_run: int = 0,
) -> Found:
    """Import a model, simulate its degrees, plan the best, and run some of them.

    Parameters
    ----------
    shapes
        Sizes of inputs as tvmc has them: "x:[1,3,224,224] y:[1,8]".
    csv
        A table of rows, in which those that are known are.
    num_run
        How many of the best are built and run; 0: none.

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
    if num_run:
        _check_can_run(cluster)
    with tvm.transform.PassContext(opt_level=OPT_LEVEL):
        source = import_source(path, options, shapes)
        models: Sequence[ShardedModel]
        rows: tuple[SearchRow, ...]
        if isinstance(options.degrees, Degrees):
            model = plan_model(source, options.degrees, cluster, options)
            rows, models = (row_of(model),), (model,)
        else:
            grid = search_degrees(source, cluster, options, csv, max(num_run, KERNELS_OF_BEST))
            rows, models = grid.rows, grid.models
        measured = _run_all(models[:num_run], options) if num_run else {}
    best = models[0]
    if measured:
        best = min(models[:num_run], key=lambda model: measured[model.strategy.degrees])
    untrained: tuple[str, ...] = ()
    if options.is_training:
        rows_of_best = best.strategy.degrees.rows(options.batch)
        untrained = source.step(rows_of_best, options.batch).untrained
    return Found(rows, best, measured, untrained)


def import_source(path: Path, options: ShardOptions, shapes: str | None) -> ModelSource:
    """Import an ONNX model; for any number of rows where its inputs leave that open.

    Raises
    ------
    FrontendError
        The file cannot be read, or `shapes` is no text of shapes.
    UnsupportedRelayError
        The rows cannot be followed through an op.
    """
    options.say(f"importing {path}")
    try:
        given = {} if shapes is None else dict(parse_shape_string(shapes))
    except argparse.ArgumentTypeError as err:
        raise FrontendError(f"--input-shapes {shapes!r}: {err}") from err
    is_free = bool(free_batch(path, given).names)
    imported = from_onnx(
        path,
        input_shapes=given,
        batch=SYMBOLIC if is_free else None,
        keep_weights=options.is_training,
    )
    return ModelSource(imported.mod, imported.params, options, path.stem)


def _check_can_run(cluster: Cluster) -> None:
    check_reachable(cluster)
    absent = missing_devices(cluster, [device.name for device in cluster.devices])
    if absent:
        raise MissingCostError(
            f"--run needs the devices of the cluster, and this machine lacks {'; '.join(absent)}; "
            f"leave --run out"
        )


def _run_all(models: Sequence[ShardedModel], options: ShardOptions) -> dict[Degrees, int]:
    """Times of whole batches, by degrees: all are run in turns, and the median of the turn counts
    that was disturbed least."""
    executors = {}
    for model in models:
        options.say(f"compiling {model.strategy.degrees}")
        executable = pipeline.build_module(model.to_module())
        executors[model.strategy.degrees] = Executor(executable), made_up_inputs(model, executable)
    times: dict[Degrees, list[int]] = {degrees: [] for degrees in executors}
    for _ in range(_TURNS):
        for degrees, (executor, inputs) in executors.items():
            options.say(f"running {degrees}")
            times[degrees].append(_turn_ns(executor, inputs))
    return {degrees: min(found) for degrees, found in times.items()}


def _turn_ns(executor: Executor, inputs: Mapping[str, np.ndarray]) -> int:
    """The median of some runs, after one that is not counted and sets the inputs."""
    executor.run(inputs)
    (first,) = executor.benchmark(1)
    return int(median(executor.benchmark(max(1, min(_MOST_RUNS, _ROUND_NS // max(1, first))))))
