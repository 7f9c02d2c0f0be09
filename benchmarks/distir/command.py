"""`benchmarks distir`: DistIR's grids simulated here, and its best configurations beside ours.

A row for each configuration of each model and batch:

    model, mode, batch, D, T, P, K, schedule, zero, recompute
                    what it is; mode is "training" or "inference"
    simulated_ms, predicted_peak_bytes, fits
                    simulated on the modelled machine (`machine.py`); null: it cannot be made
    measured_ms, measured_peak_bytes
                    null, as no machine has been asked; of a rank that is fullest with `--run`
    published       true for the configuration that the paper prints as the best of its batch
    place           of the published D/T/P among all of the batch, 1 first; null for other rows
    grid_s          seconds that the whole grid of the model took here
    bubble, communication
                    shares of the devices' time

`grid_s` is measured here; all else is simulated, or printed in the paper. With `--growth` a row has
model, layers, tasks (of a microbatch in one lane) and the processor seconds of the whole grid. What
rows of `--run` have beside these, `run_table` says.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.distir import table as distir_table
from benchmarks.distir.grids import Comparison, Grid, compare, measure_growth, run_grid
from benchmarks.distir.machine import GIB, MachineFigures
from benchmarks.distir.published import MODELS, PublishedModel
from benchmarks.distir.run_table import run_table
from benchmarks.ignored import refuse_ignored
from benchmarks.plots import check_can_plot, plot_fronts
from heteroplace.errors import HeteroPlaceError
from heteroplace.options import Argument, count
from heteroplace.parts.parallel.transforms.search_rows import SearchRow
from heteroplace.tvm_bridge import require_tvm
from heteroplace.written_files import WrittenFile

Say = Callable[[str], None]
Row = dict[str, object]

_RUNS = "benchmarks.distir.runs"
"""Imports TVM, so it is imported when it is asked for."""
_ROUNDS = 15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark; `--only` and `--json` are those of all benchmarks."""
    parser.add_argument(
        "--batches",
        type=Argument(_batches),
        default=(),
        metavar="B,B",
        help="only these batches (default: those of the paper)",
    )
    parser.add_argument(
        "--processes",
        type=Argument(count),
        default=1,
        metavar="N",
        help="share the work (default: 1)",
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--imported", action="store_true", help="GPT-2 from ONNX, cut by its axes (needs TVM)"
    )
    kinds.add_argument(
        "--run",
        action="store_true",
        help="small networks on two one-core ranks of this machine, predicted and run (needs TVM)",
    )
    kinds.add_argument(
        "--growth", action="store_true", help="time of the grids against layers, and no rows else"
    )
    parser.add_argument(
        "--rounds",
        type=Argument(count),
        default=_ROUNDS,
        metavar="N",
        help=f"turns of each run (default: {_ROUNDS})",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="with --run: measure links with fewer copies, and run the plans of the search once",
    )
    parser.add_argument(
        "--memory-gib",
        type=Argument(_gib),
        default=32.0,
        metavar="GIB",
        help="of a device (default: 32)",
    )
    parser.add_argument(
        "--rows",
        action=WrittenFile,
        type=Path,
        metavar="FILE",
        help="table of rows; those it has are not simulated",
    )
    parser.add_argument(
        "--plot",
        action=WrittenFile,
        type=Path,
        metavar="FILE",
        help="picture of throughput over peak memory",
    )


def _batches(text: str) -> tuple[int, ...]:
    return tuple(count(batch) for batch in text.split(","))


def _gib(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(f"expected a number of GiB above 0, got {text!r}")
    return value


def run(arguments: argparse.Namespace, say: Say) -> Iterable[Row]:
    """Simulate the grids that the command line asks for; return the rows, grid by grid.

    Raises
    ------
    HeteroPlaceError
        The file of rows or the picture cannot be written, or a configuration cannot be made.
    """
    if arguments.run:
        refuse_ignored(arguments, add_arguments, "run", ("batches", "rounds", "quick"))
    elif arguments.growth:
        refuse_ignored(arguments, add_arguments, "growth", ("memory_gib",))
    elif arguments.rounds != _ROUNDS or arguments.quick:
        option = "--quick" if arguments.quick else "--rounds"
        raise HeteroPlaceError(f"{option} belongs to --run: leave it out, or add --run")
    if arguments.plot is not None:
        check_can_plot(arguments.plot)
    if arguments.run:
        require_tvm()
        rows: Iterable[Row] = importlib.import_module(_RUNS).run(arguments, say)
        return rows
    figures = MachineFigures(memory_bytes=round(arguments.memory_gib * GIB))
    models = [model for model in MODELS if re.search(arguments.only or "", model.name)]
    if arguments.growth:
        return (
            {"model": model.name, **asdict(growth)}
            for model in models
            for growth in measure_growth(model, figures)
        )
    return _grid_rows(arguments, models, figures, say)


def _grid_rows(
    arguments: argparse.Namespace,
    models: Sequence[PublishedModel],
    figures: MachineFigures,
    say: Say,
) -> Iterator[Row]:
    grids = []
    for model in models:
        grid = run_grid(
            model,
            figures,
            arguments.batches or None,
            arguments.processes,
            arguments.rows,
            say,
            arguments.imported,
        )
        grids.append(grid)
        comparisons = compare([grid])
        yield from [_json_row(grid, row, comparisons) for row in grid.rows]
    if arguments.plot is not None and grids:
        plot_fronts(arguments.plot, distir_table.fronts(grids))
        say(f"plot: {arguments.plot}")
    say(distir_table.grid_table(grids, compare(grids)))


def table(rows: list[Row]) -> str:
    """Return the summary of the rows."""
    if rows and "seconds" in rows[0]:
        return distir_table.growth_table(rows)
    if rows and rows[0].get("measured_ms") is not None:
        return run_table(rows)
    return distir_table.row_table(rows)


def _json_row(grid: Grid, row: SearchRow, comparisons: list[Comparison]) -> Row:
    published = next(
        (
            each
            for each in comparisons
            if each.published.model == grid.model.name
            and each.published.batch == row.batch
            and each.published.degrees == row.degrees
        ),
        None,
    )
    degrees = row.degrees
    return {
        "model": grid.model.name,
        "mode": "training" if grid.model.is_training else "inference",
        "batch": row.batch,
        "D": degrees.data,
        "T": degrees.tensor,
        "P": degrees.pipeline,
        "K": degrees.micro_batches,
        "schedule": "1f1b" if grid.model.is_training else "forward",
        "zero": 0,
        "recompute": None,
        "simulated_ms": None if row.makespan_ns is None else row.makespan_ns / 1e6,
        "measured_ms": None,
        "predicted_peak_bytes": row.peak_bytes,
        "measured_peak_bytes": None,
        "fits": row.fits,
        "published": published is not None,
        "place": None if published is None else published.place,
        "grid_s": round(grid.seconds, 3),
        "bubble": round(row.bubble, 6),
        "communication": round(row.communication, 6),
    }
