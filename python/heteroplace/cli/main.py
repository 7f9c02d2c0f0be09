"""The command `heteroplace`: reads the arguments, runs one subcommand, turns errors into codes.

Exit codes: 0 done (`place`: there is a plan), 2 wrong usage or input, 3 no placement is possible, 4
no plan was found within the budget, 5 a package is missing, 130 interrupted without a plan.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

import heteroplace
from heteroplace.errors import HeteroPlaceError, InfeasibleError, SolverLimitError
from heteroplace.terminal import printable_streams

WRONG_INPUT, INFEASIBLE, NO_PLAN, MISSING_PACKAGE, INTERRUPTED = 2, 3, 4, 5, 130
# Every module adds its subcommands with `add_commands(subparsers)`; each sets `run`, which takes
# the parsed arguments and returns nothing. They are loaded by `main`, which answers Ctrl-C.
_MODULES = (
    "heteroplace.cli.place",
    "heteroplace.cli.profile",
    "heteroplace.cli.shard",
    "heteroplace.cli.check",
    "heteroplace.cli.show",
    "heteroplace.cli.probe",
    "heteroplace.cli.costs",
    "heteroplace.cli.routes",
    "heteroplace.cli.setup_tvm",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; by default those of this process.
    """
    with printable_streams():
        try:
            return _run(arguments)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    parsed = make_parser().parse_args(arguments)
    try:
        parsed.run(parsed)
        # So that a closed pipe is noticed here and not while the interpreter ends.
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (HeteroPlaceError, ImportError, OSError) as fault:
        if parsed.verbose:
            traceback.print_exc()
        print(f"error: {fault}", file=sys.stderr)
        return _exit_code(fault)
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="heteroplace", description="Place a network over the processors of a machine."
    )
    parser.add_argument(
        "--version", action="version", version=f"heteroplace {heteroplace.__version__}"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show the traceback of an error"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in _MODULES:
        importlib.import_module(name).add_commands(commands)
    return parser


def _exit_code(fault: Exception) -> int:
    # MissingPackageError is also an ImportError.
    if isinstance(fault, ImportError):
        return MISSING_PACKAGE
    if isinstance(fault, SolverLimitError):
        return NO_PLAN
    return INFEASIBLE if isinstance(fault, InfeasibleError) else WRONG_INPUT


if __name__ == "__main__":
    sys.exit(main())
