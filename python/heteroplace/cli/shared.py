"""What commands share: arguments and their values, checks of outputs, text or JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeAlias

from heteroplace.cli.environment import environment_json
from heteroplace.command_parser import MORE, VERBOSE_FLAGS, VERBOSE_HELP, CommandParser
from heteroplace.errors import HeteroPlaceError
from heteroplace.files.output import check_writable as check_writable
from heteroplace.files.output import json_text
from heteroplace.progress import ProgressDisplay
from heteroplace.stage_log import StageLog, stage_table
from heteroplace.written_files import WrittenFile

Parsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(
    commands: Parsers,
    name: str,
    help: str,
    run: Callable[[argparse.Namespace], None] | None = None,
    description: str | None = None,
    group: str = MORE,
    common: Collection[str] = (),
) -> argparse.ArgumentParser:
    """Add a subcommand and return its parser.

    Parameters
    ----------
    help
        In the list of subcommands.
    run
        What it does; None: it has subcommands of its own.
    description
        On its own page; None: what the list says.
    group
        One of COMMAND_GROUPS, in the list of subcommands.
    common
        Options that --help shows, of a command with many; empty: it shows all.
    """
    said = f"{help[0].upper()}{help[1:]}." if description is None else description
    parser = commands.add_parser(name, help=help, description=said)
    if isinstance(parser, CommandParser):
        parser.group = group
        if common:
            parser.show_first(common)
    if run is not None:
        parser.set_defaults(run=run, command=name)
        parser.add_argument(
            "-q", "--quiet", action="store_true", help="show no progress and no warnings"
        )
        parser.add_argument(
            *VERBOSE_FLAGS, action="store_true", default=argparse.SUPPRESS, help=VERBOSE_HELP
        )
    return parser


def add_output_file(
    parser: argparse._ActionsContainer, help: str, metavar: str = "FILE", **options: Any
) -> None:
    """Add -o and --output, a file that the command writes; `options`: as of `WrittenFile`."""
    add_written(parser, "-o", "--output", help=help, metavar=metavar, **options)


def add_written(
    parser: argparse._ActionsContainer, *flags: str, metavar: str = "FILE", **options: Any
) -> None:
    """Add an argument that names a file to write; `options`: as of `WrittenFile`."""
    parser.add_argument(*flags, action=WrittenFile, metavar=metavar, **options)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON, no text and no tables")


def add_stages(parser: argparse.ArgumentParser) -> None:
    """Add --stages to a command that compiles."""
    parser.add_argument(
        "--stages", action="store_true", help="print all stages in order, with their times"
    )


def stages_text(arguments: argparse.Namespace, log: StageLog) -> str:
    """Return the table of --stages, with an empty line behind it; "" without the option."""
    return f"{stage_table(log.times)}\n\n" if arguments.stages else ""


def stages_json(arguments: argparse.Namespace, log: StageLog) -> dict[str, Any]:
    """Return what `stages_text` says, for --json."""
    return {"stages": list(map(asdict, log.times))} if arguments.stages else {}


def progress_display(arguments: argparse.Namespace) -> ProgressDisplay:
    """Return what shows progress on standard error: nothing with -q, details with -v."""
    stream = None if arguments.quiet else sys.stderr
    return ProgressDisplay(stream, is_verbose=arguments.verbose)


@contextmanager
def progress_of(arguments: argparse.Namespace) -> Iterator[StageLog]:
    """Yield a log whose stages are shown, until the end of the block."""
    with progress_display(arguments) as display:
        yield StageLog(display=display)


def show(
    arguments: argparse.Namespace, value: Callable[[], object], text: Callable[[], str]
) -> None:
    """Print the result of a command: a text, or with --json a value and the environment."""
    if arguments.json:
        result = value()
        if isinstance(result, dict):
            result |= environment_json()
        print_json(result)
    else:
        print(text())


def print_json(value: object) -> None:
    """Print a value as JSON."""
    print(json_text(value, indent=1))


def given_flags(arguments: argparse.Namespace, flags: Iterable[str]) -> list[str]:
    """Return which of some flags a command line gives, with their dashes."""
    values = {flag: getattr(arguments, flag.replace("-", "_")) for flag in flags}
    return [f"--{flag}" for flag, value in values.items() if value not in (None, False, [])]


def check_kind(
    arguments: argparse.Namespace, path: str, kind: str, uses: Mapping[str, Sequence[str]]
) -> None:
    """Raise HeteroPlaceError for a flag that is about files of other kinds than this one.

    Parameters
    ----------
    uses
        Flags by the kinds of file that they are about; others are about all.
    """
    flags = dict.fromkeys(flag for of_kind in uses.values() for flag in of_kind)
    others = given_flags(arguments, [flag for flag in flags if flag not in uses.get(kind, ())])
    if others:
        raise HeteroPlaceError(
            f"{path}: {', '.join(others)} would be ignored: this is a {kind} file; leave that out"
        )


def written_text(**files: str | None) -> str:
    """Return a line for each file that was written, with an end of line before it.

    >>> written_text(plan="plan.json", trace=None)
    '\\nplan: plan.json'
    """
    return "".join(f"\n{what}: {path}" for what, path in files.items() if path)


def plural(number: int, noun: str) -> str:
    """Return how many there are.

    >>> plural(1, "core"), plural(1200, "core")
    ('1 core', '1,200 cores')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
