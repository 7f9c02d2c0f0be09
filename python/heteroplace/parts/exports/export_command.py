"""`heteroplace export`: a plan and the name of a format -> the text that another program reads."""

from __future__ import annotations

import argparse
import os

from heteroplace.cli.open_solution import add_solution_options, read_solution
from heteroplace.cli.shared import Parsers, add_command, add_json, add_output_file, show
from heteroplace.command_parser import MORE
from heteroplace.files.output import check_writable
from heteroplace.parts.exports.exporting import (
    check_use,
    export,
    export_formats,
    model_of_plan,
    open_format,
    settings_path,
)


def add_commands(commands: Parsers) -> None:
    """Add the subcommand `export`."""
    formats = export_formats()
    parser = add_command(
        commands,
        "export",
        "write a placement for another program",
        run,
        description="Write where a plan runs each layer in the form that another program reads.",
        group=MORE,
    )
    parser.add_argument(
        "plan",
        metavar="PLAN",
        help="model, compiled model, solution, or plan with --graph and --cluster",
    )
    parser.add_argument(
        "--to",
        required=True,
        choices=formats,
        metavar="FORMAT",
        help=f"one of: {', '.join(formats)}",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL.onnx",
        help="the model that was placed, for formats that need it; default: PLAN, if it is one",
    )
    add_output_file(parser, "write to this file; without it the text is printed")
    add_solution_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Export the plan, and print the text or the names of the files."""
    model = model_of_plan(arguments.plan, arguments.model)
    output = arguments.output
    form = open_format(arguments.to)
    check_use(arguments.to, form, model, output)
    files = _files(output, writes_model=form.writes_model)
    check_writable(*files)
    text = export(read_solution(arguments.plan, arguments), arguments.to, output, model=model)
    show(
        arguments,
        lambda: {"format": arguments.to, "text": text, "files": files},
        lambda: "\n".join(files) if files else text.rstrip("\n"),
    )


def _files(output: str | None, *, writes_model: bool) -> list[str]:
    if output is None:
        return []
    return [output, os.fspath(settings_path(output))] if writes_model else [output]
