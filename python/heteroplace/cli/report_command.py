"""`heteroplace report`: a plan, solution or compiled model -> one HTML page that shows it.

Needs no TVM but to measure.
"""

from __future__ import annotations

import argparse
import shlex
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import heteroplace
from heteroplace.cli.environment import times_json
from heteroplace.cli.models.given_inputs import input_arrays
from heteroplace.cli.models.model_arrays import make_inputs
from heteroplace.cli.models.onnx_model import solution_json
from heteroplace.cli.open_solution import (
    add_solution_options,
    given_of_plan,
    read_with_manifest,
    with_program,
)
from heteroplace.cli.run_report import measured_peaks
from heteroplace.cli.shared import (
    Parsers,
    add_command,
    add_json,
    add_output_file,
    check_writable,
    progress_of,
    show,
)
from heteroplace.command_parser import START
from heteroplace.errors import HeteroPlaceError
from heteroplace.model.solution import Solution
from heteroplace.report.headline import solution_headline
from heteroplace.report.notes import notes_text, solution_notes
from heteroplace.solve.solve_report import write_report

_OPEN_IT = "; open it in a browser"


def add_commands(commands: Parsers) -> None:
    """Add the subcommand `report`."""
    parser = add_command(
        commands,
        "report",
        "write a page that shows a plan",
        run,
        description="Write one self-contained HTML page that shows a plan, a solution or a "
        "compiled model: how fast and against what, timeline, memory, the network by device, "
        "links, why each task is where it is and what moving it would cost.",
        group=START,
    )
    parser.add_argument(
        "file", metavar="FILE", help="model, compiled model, solution, or plan (JSON)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    add_output_file(
        parser,
        "the page; default: FILE with the ending .html",
        default_name=lambda of: _beside(of.file) if Path(of.file).name else None,
    )
    parser.add_argument(
        "--measure",
        type=int,
        metavar="N",
        help="of a compiled model: run it N times here (it needs TVM), and show what was measured "
        "beside what was predicted",
    )
    add_solution_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Read the file, write the page, print the headline."""
    output = arguments.output or _beside(arguments.file)
    check_writable(output)
    _check_measuring(arguments)
    command = _command(arguments, output)
    with_program(
        arguments.file, arguments, lambda file, rest: _write_page(file, rest, output, command)
    )


def _write_page(file: str, arguments: argparse.Namespace, output: str, command: str) -> None:
    solution, manifest = read_with_manifest(file, arguments)
    if arguments.measure is not None:
        if manifest is None:
            raise HeteroPlaceError(
                f"{arguments.file}: --measure runs a compiled model, and this is none; compile it "
                f"by `heteroplace compile` or `tvmc compile --placement`"
            )
        _measure(arguments, file, output, command)
        return
    properties = {"heteroplace": heteroplace.__version__}
    write_report(
        solution,
        output,
        memory=() if manifest is None else manifest.memory,
        properties=properties | (manifest.properties if manifest else {}),
        command=command,
        file=arguments.file,
    )
    _say(arguments, solution, output)


def _beside(file: str) -> str:
    """The page of a file that nobody has named another one for."""
    if not Path(file).name:
        raise HeteroPlaceError(
            f"{file!r} is no file; give a model, a compiled model, a solution or a plan (JSON)"
        )
    return str(Path(file).with_suffix(".html"))


def _say(
    arguments: argparse.Namespace,
    solution: Solution,
    output: str,
    measured: Mapping[str, object] = MappingProxyType({}),
) -> None:
    size, headline = Path(output).stat().st_size, solution_headline(solution)
    written = f"report: {output} ({size / 1e6:.2f} MB){'' if arguments.open else _OPEN_IT}"
    show(
        arguments,
        lambda: {
            "report": output,
            "bytes": size,
            "headline": headline,
            "notes": solution_notes(solution),
            "solution": solution_json(solution),
            **measured,
        },
        lambda: "\n".join(filter(None, (headline, notes_text(solution), written))),
    )
    if arguments.open and not webbrowser.open(Path(output).resolve().as_uri()):
        raise HeteroPlaceError(f"{output}: no browser could be started; open the page yourself")


def _check_measuring(arguments: argparse.Namespace) -> None:
    if arguments.measure is not None and arguments.measure < 1:
        raise HeteroPlaceError(f"--measure {arguments.measure}: expected at least 1 run")


def _measure(arguments: argparse.Namespace, file: str, output: str, command: str) -> None:
    """Load a compiled model, run it, write the page."""
    given = input_arrays(arguments)
    with progress_of(arguments) as log:
        log.say("Loading the model")
        executor = heteroplace.load(file)
        log.say("Measuring")
        executor.run(make_inputs(executor.inputs, given, {}, seed=0))
        peaks = measured_peaks(executor.solution)
        times_ns = executor.report(
            output,
            num_runs=arguments.measure,
            peak_flops=peaks,
            command=command,
            file=arguments.file,
        )
    _say(arguments, executor.solution, output, {"measured_ns": times_json(times_ns)})


def _command(arguments: argparse.Namespace, output: str) -> str:
    options = given_of_plan(arguments)
    if arguments.measure is not None:
        options["--measure"] = str(arguments.measure)
    words = [word for option in options.items() for word in option]
    for name, value in arguments.input:
        sizes = value if isinstance(value, str) else ",".join(map(str, value))
        words += ["--input", f"{name}={sizes}"]
    return shlex.join(["heteroplace", "report", arguments.file, *words, "-o", output])
