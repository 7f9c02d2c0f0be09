"""Errors of a `tvmc` command -> one line on stderr and an exit code; loads no TVM by itself."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from heteroplace.cli.main import report, reported
from heteroplace.tvm_bridge import require_tvm

Command = Callable[[argparse.Namespace], int]

LOADER_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What importers of model files raise on a file that they did not expect. (TVMError is a
RuntimeError.)"""


def guarded(command: Command) -> Command:
    """Return `command` as one that reports its errors instead of raising them.

    Those of TVM's driver (TVMCException) are left to the driver, which reports them itself.
    """

    def run(arguments: argparse.Namespace) -> int:
        is_verbose = arguments.verbose > 0
        try:
            return reported(lambda: command(arguments), is_verbose=is_verbose)
        except require_tvm().TVMError as fault:
            text = f"TVM failed: {one_line(fault)} (-v shows where)"
            return report(fault, text, is_verbose=is_verbose)

    return run


def one_line(fault: BaseException) -> str:
    """Return the line of an error that says why: TVM puts C++ stack frames around it.

    >>> one_line(ValueError("Traceback:\\n  0: tvm::Build\\nInternalError: Check failed: a == b"))
    'InternalError: Check failed: a == b'
    """
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"\w*Error: |.*Check failed", line)]
    return (telling or lines or [type(fault).__name__])[-1].rstrip(".")
