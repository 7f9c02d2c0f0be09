"""The command `heteroplace`: reads the arguments, runs one subcommand, turns errors into codes.

Exit codes are those of tvmc, and one more: 0 done, 2 wrong usage, 3 no placement is possible, 4 the
input is wrong, 5 a package is missing, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

import heteroplace
from heteroplace.cli import check, place
from heteroplace.errors import HeteroPlaceError, InfeasibleError

USAGE, INFEASIBLE, WRONG_INPUT, MISSING_PACKAGE, INTERRUPTED = 2, 3, 4, 5, 130
# Every module adds its subcommands with `add_commands(subparsers)`; each sets `run`, which takes
# the parsed arguments and returns nothing.
_MODULES = (place, check)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; by default those of this process.
    """
    parser = make_parser()
    parsed = parser.parse_args(arguments)
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
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
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
    for module in _MODULES:
        module.add_commands(commands)
    return parser


def _exit_code(fault: Exception) -> int:
    # MissingTVMError is also an ImportError.
    if isinstance(fault, ImportError):
        return MISSING_PACKAGE
    return INFEASIBLE if isinstance(fault, InfeasibleError) else WRONG_INPUT


if __name__ == "__main__":
    sys.exit(main())
