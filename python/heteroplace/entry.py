"""The start of every command: from here on, Ctrl-C ends it in one line.

While Python runs what is in this file, Ctrl-C still shows a traceback. So it imports little: the
rest is imported by `start`.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from importlib import import_module
from types import FrameType

INTERRUPTED = 130
"""Exit code of a program that Ctrl-C has ended: 128 and the number of the signal, as in shells."""


def start(module: str, function: str, *arguments: str) -> int:
    """Load a module, and return the exit code of one of its functions.

    Meanwhile Ctrl-C calls `end_at_once`, except within `Interrupts`. It stays ignored where it is,
    as for a job in the background.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
    code: int = getattr(import_module(module), function)(*arguments)
    gc.freeze()  # Else Python looks for garbage before it ends: 0.1 s after a compilation.
    return code


def end_at_once(_number: int, _frame: FrameType | None) -> None:
    """Answer Ctrl-C where nothing has to be cleaned up.

    An exception would not do: extension modules may crash if one is raised while they are loaded.
    """
    try:
        if sys.__stderr__ is not None:  # None: the caller has closed it
            os.write(sys.__stderr__.fileno(), b"interrupted\n")
    finally:
        os._exit(INTERRUPTED)
