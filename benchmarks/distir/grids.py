"""A published model -> the search over all its configurations on the modelled machine."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.distir.gpt2 import Gpt2
from benchmarks.distir.machine import MachineFigures, machine_cluster, machine_collectives
from benchmarks.distir.published import (
    ELEMENT_BYTES,
    GPT2_BEST,
    INFERENCE_BATCHES,
    MLP_BEST,
    NUM_DEVICES,
    PublishedBest,
    PublishedModel,
)
from heteroplace.costs.prediction.op_costs import OpCosts
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.mlp import Mlp
from heteroplace.parts.parallel.transforms.search import search
from heteroplace.parts.parallel.transforms.search_evaluator import SearchProblem, Source
from heteroplace.parts.parallel.transforms.search_rows import SearchRow, ranked
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph, cut_stages
from heteroplace.tvm_bridge import require_tvm

_DTYPE = "float16"
_IMPORTED = "benchmarks.distir.imported"
"""Imports TVM, so it is imported when it is asked for."""


@dataclass(frozen=True)
class ModelSource:
    """The sharded graphs of a published model, as `SearchProblem.source` gives them."""

    model: PublishedModel

    def __call__(self, num_lanes: int, rows: int, batch: int) -> ShardedGraph:
        """Return the graph of one replica."""
        model = self.model
        if model.is_training:
            mlp = Mlp(model.layers, model.width, rows, num_lanes, _DTYPE, has_input_gradient=True)
            return mlp.training(batch)
        gpt2 = Gpt2(model.layers, model.width, model.heads, rows, num_lanes, dtype=_DTYPE)
        return gpt2.inference()


def imported_source(model: PublishedModel) -> Source:
    """Return the graphs of a GPT-2 that is imported from ONNX; those of an MLP are written.

    Raises
    ------
    HeteroPlaceError
        There is no TVM, or the model cannot be imported.
    """
    if model.is_training:
        return ModelSource(model)
    require_tvm()
    source: Source = importlib.import_module(_IMPORTED).ImportedSource(model)
    return source


def search_problem(
    model: PublishedModel,
    figures: MachineFigures,
    num_devices: int = NUM_DEVICES,
    source: Source | None = None,
) -> SearchProblem:
    """Return the search for the best degrees of a published model.

    Parameters
    ----------
    source
        Of its graphs; None: they are written without TVM.
    """
    cluster = machine_cluster(figures, num_devices)
    collectives = machine_collectives(figures, num_devices)
    costs = OpCosts(cluster, _DTYPE)
    options = "" if source is None else type(source).__name__
    made = ModelSource(model) if source is None else source
    return SearchProblem(model.name, made, cluster, costs, collectives, options=options)


@dataclass(frozen=True)
class Grid:
    """All configurations of a model, simulated."""

    model: PublishedModel
    rows: tuple[SearchRow, ...]
    """Of all batches, by batch, then degrees."""
    seconds: float
    """From the model to the last row, here."""


def run_grid(
    model: PublishedModel,
    figures: MachineFigures,
    batches: Sequence[int] | None = None,
    num_processes: int = 1,
    path: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    is_imported: bool = False,
) -> Grid:
    """Simulate all configurations of a model.

    Parameters
    ----------
    batches
        None: those of the published grid, and of the published winners.
    is_imported
        As `imported_source`; what that takes is in the seconds.

    Raises
    ------
    HeteroPlaceError
        As `search` and `imported_source`.
    """
    start = time.perf_counter()
    source = imported_source(model) if is_imported else None
    problem = search_problem(model, figures, source=source)
    rows = search(problem, batches or grid_batches(model), num_processes=num_processes, path=path)
    seconds = time.perf_counter() - start
    say(f"{model.name}: {len(rows)} configurations in {seconds:.1f} s")
    return Grid(model, tuple(rows), seconds)


@dataclass(frozen=True)
class Growth:
    """A grid of a model with fewer layers."""

    layers: int
    tasks: int
    """Of a microbatch, in the graph of one lane."""
    seconds: float
    """Processor time, here."""


def measure_growth(model: PublishedModel, figures: MachineFigures) -> Iterator[Growth]:
    """Yield what the grid of a model takes with an eighth, a quarter, half and all of its layers.

    Raises
    ------
    ShardingError
        As `search`.
    """
    for divisor in (8, 4, 2, 1):
        part = replace(model, layers=model.layers // divisor)
        tasks = len(ModelSource(part)(1, 2, 2).graph.tasks)
        start = time.process_time()
        run_grid(part, figures)
        yield Growth(part.layers, tasks, time.process_time() - start)


def grid_batches(model: PublishedModel) -> tuple[int, ...]:
    """Return the batches of the published grid of GPT-2, or of the winners of an MLP."""
    if not model.is_training:
        return INFERENCE_BATCHES
    return tuple(best.batch for best in MLP_BEST if best.model == model.name)


@dataclass(frozen=True)
class Comparison:
    """A published best configuration beside ours.

    What fits is by `resident_bytes` too where that is known, since the published runs were on a
    framework, which frees less than our rule of live bytes assumes.
    """

    published: PublishedBest
    best: SearchRow | None
    """Ours; None: none fits."""
    modelled: SearchRow | None
    """The published D/T/P with its best K, as we simulate it; None: it does not fit."""
    place: int | None
    """Of the published D/T/P among all, each with its best K; 1 is first. None: does not fit."""

    @property
    def over_best(self) -> float | None:
        """Modelled time of the published D/T/P over that of our best."""
        if self.best is None or self.modelled is None:
            return None
        return self.best.items_per_second / self.modelled.items_per_second


def resident_bytes(model: PublishedModel, row: SearchRow) -> int:
    """Return what a framework holds on a rank that trains an MLP; 0 for other models.

    Weights, gradients of the same size beside them from the start, and what goes into and comes out
    of the rectifier of each layer of a stage (cut by the lanes in even layers), for as many
    microbatches as are in flight.
    """
    if not model.is_training:
        return 0
    degrees = row.degrees
    rows, lanes = degrees.rows(row.batch), degrees.tensor
    stage_of_layer = cut_stages(model.layers, degrees.pipeline)
    totals = [0] * degrees.pipeline
    for layer, stage in enumerate(stage_of_layer):
        width = model.width // lanes if layer % 2 == 0 else model.width
        kept = 2 * rows * width * min(degrees.micro_batches, degrees.pipeline)
        totals[stage] += (2 * model.width * model.width // lanes + kept) * ELEMENT_BYTES
    return max(totals)


def compare(grids: Sequence[Grid], is_live: bool = False) -> list[Comparison]:
    """Return the published bests of the grids' models and batches beside ours.

    Parameters
    ----------
    is_live
        What fits is by our rule of live bytes alone.
    """
    found = []
    for best in (*MLP_BEST, *GPT2_BEST):
        for grid in grids:
            rows = [row for row in grid.rows if row.batch == best.batch]
            if grid.model.name == best.model and rows:
                fitting = [
                    row
                    for row in rows
                    if is_live or resident_bytes(grid.model, row) <= row.limit_bytes
                ]
                found.append(_compare(best, fitting))
    return found


def _compare(published: PublishedBest, rows: Sequence[SearchRow]) -> Comparison:
    by_triple: dict[Degrees, SearchRow] = {}
    for row in ranked(rows):
        by_triple.setdefault(replace(row.degrees, micro_batches=1), row)
    triple = replace(published.degrees, micro_batches=1)
    places = list(by_triple)
    place = places.index(triple) + 1 if triple in by_triple else None
    best = next(iter(by_triple.values()), None)
    return Comparison(published, best, by_triple.get(triple), place)
