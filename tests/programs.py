"""Python programs in processes of their own, and limits of this one."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_TIME_LIMIT_S = 120


def child_processes() -> set[int]:
    """Return the processes that this one started and has not waited for."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(word) for each in lists for word in each.read_text().split()}


_SHORTLY = """import heteroplace
import heteroplace.measure.measured_interference
heteroplace.measure.measured_interference._ROUND_NS = 1
heteroplace.measure.measured_interference._NUM_ROUNDS = 2
"""


def measured_shortly(program: str) -> str:
    """A program that imports heteroplace, with shorter measuring of how tasks disturb others."""
    before, found, after = program.partition("import heteroplace\n")
    assert found
    return before + _SHORTLY + after


def environment(**changes: str | None) -> dict[str, str]:
    """That of this process, with what it can import and `tests`; None takes a variable away."""
    path = [str(_ROOT), *(entry for entry in sys.path if entry)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **changes}
    return {name: value for name, value in variables.items() if value is not None}


def run_python(program: str, *flags: str, **changes: str | None) -> str:
    """What a program prints; it must end well. `changes` are those of the environment."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment(**changes),
        timeout=_TIME_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """Let no file that this process writes grow beyond a size, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
