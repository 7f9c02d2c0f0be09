"""Cases that crash, raise and hang: what the runner of cases must see."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from pathlib import Path

from heteroplace.errors import GraphError


def run_case(seed: str, number: int, folder: Path) -> str:
    """The first case is right; then a crash, a typed error, another one, a hang, a right one."""
    if number == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 2:
        raise GraphError(f"{folder}{seed}")
    if number == 3:
        raise KeyError(number)
    if number == 4:
        faulthandler.dump_traceback_later(0.2, exit=True)  # sooner than in earnest
        time.sleep(60)
    return "right"
