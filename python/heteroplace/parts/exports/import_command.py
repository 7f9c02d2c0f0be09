"""`heteroplace import`: another program's placement, and a plan of the same network -> a solution.

It is a command of its own, as it reads two files and `export` reads one. A solution comes out, so
`explain`, `diff` and `report` judge the placement.
"""

from __future__ import annotations

import argparse

from heteroplace.cli.open_solution import add_solution_options, read_solution
from heteroplace.cli.shared import Parsers, add_command, add_json, add_output_file, show
from heteroplace.command_parser import MORE
from heteroplace.files.output import check_writable
from heteroplace.parts.exports.exporting import model_of_plan
from heteroplace.parts.exports.importing import check_import, import_formats, import_placement
from heteroplace.report.headline import solution_headline


def add_commands(commands: Parsers) -> None:
    """Add the subcommand `import`."""
    formats = import_formats()
    parser = add_command(
        commands,
        "import",
        "read a placement of another program",
        run,
        description="Place a network as another program does, and predict the time. Compare the "
        "written solution with a plan by `heteroplace diff`.",
        group=MORE,
    )
    parser.add_argument(
        "placement",
        metavar="PLACEMENT",
        help="device map of accelerate (JSON), command line of llama.cpp, annotated model of ONNX "
        "Runtime with its settings next to it, or affinities of OpenVINO (JSON)",
    )
    parser.add_argument(
        "--from",
        dest="form",
        required=True,
        choices=formats,
        metavar="FORMAT",
        help=f"what the file is, one of: {', '.join(formats)}",
    )
    parser.add_argument(
        "--plan",
        required=True,
        metavar="PLAN",
        help="any plan of the network: model, compiled model, solution, or plan with --graph and "
        "--cluster",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL.onnx",
        help="the model of the network, for openvino and for nodes that name their modules in "
        "metadata; default: PLAN, if it is one",
    )
    add_output_file(parser, "write the solution (JSON)")
    add_solution_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Place the network as the file says, print the prediction, and write the solution."""
    check_writable(arguments.output)
    model = model_of_plan(arguments.plan, arguments.model)
    check_import(arguments.placement, arguments.form, model, arguments.output)
    before = read_solution(arguments.plan, arguments)
    solution = import_placement(arguments.placement, arguments.form, before, model=model)
    if arguments.output:
        solution.save(arguments.output)
    ratio = solution.expected_ns / before.expected_ns if before.expected_ns else None
    show(
        arguments,
        lambda: {
            "expected_ns": solution.expected_ns,
            "of_plan_ns": before.expected_ns,
            "ratio": ratio,
        },
        lambda: _text(solution_headline(solution), arguments.plan, ratio),
    )


def _text(headline: str, plan: str, ratio: float | None) -> str:
    return headline if ratio is None else f"{headline}\n{ratio:.2f}x the time of {plan}"
