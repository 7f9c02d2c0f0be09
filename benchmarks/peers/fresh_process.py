"""A measurement in a process of its own, since TVM keeps what it lowered and compiled.

The parent calls `measure_in_fresh_process`; the module that measures ends with `answer`, which
runs in the child.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping

from benchmarks.peers.stock import silence_tuning_hint
from heteroplace import HeteroPlaceError

_ERROR_LINES = 3
"""So many last lines of the child's errors are told."""


def measure_in_fresh_process(
    module: str, side: str, name: str, variables: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Run `python -m module side name` and return the numbers that it gives by `answer`.

    Parameters
    ----------
    variables
        Of the environment, beside this process's.

    Raises
    ------
    HeteroPlaceError
        The child failed.
    """
    command = [sys.executable, "-m", module, side, name]
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = " / ".join(done.stderr.strip().splitlines()[-_ERROR_LINES:])
        raise HeteroPlaceError(f"measuring {side} on {name} failed: {last}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def answer(sides: Mapping[str, Callable[[str], dict[str, float]]]) -> None:
    """Measure the side and the network on the command line; print the numbers as the last line."""
    silence_tuning_hint()
    side, name = sys.argv[1:]
    print(json.dumps(sides[side](name)))
