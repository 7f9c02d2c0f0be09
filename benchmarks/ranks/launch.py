"""Start this package's own ranks, by the launcher of the extra `mpi`, maybe behind shaped links."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ranks.shaped import ShapedLink, environment, shaped_command
from heteroplace.errors import ExecutionError, MissingPackageError

_TIMEOUT_S = 3600.0
_ENDED_S = 10.0
_LINES_TOLD = 15
_COMMAND = (
    "import sys; from heteroplace.cli.console_scripts import heteroplace; sys.exit(heteroplace())"
)


def find_launcher() -> str:
    """Return the path of `mpiexec`: of this Python's environment, else of the system.

    Raises
    ------
    MissingPackageError
        There is none.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise MissingPackageError(
            "there is no mpiexec, which starts ranks; run: pip install 'heteroplace[mpi]'"
        )
    return found


def mpi_name() -> str:
    """Return which MPI this rank has, e.g. "MPICH Version: 5.0.2"."""
    text = str(importlib.import_module("mpi4py.MPI").Get_library_version())
    return " ".join(text.split("\n")[0].rstrip("\0").split())


def command_of(*arguments: str) -> list[str]:
    """Return what runs the command line `heteroplace ARGUMENTS...` of this package."""
    return [sys.executable, "-c", _COMMAND, *arguments]


def module_of(name: str, *arguments: str) -> list[str]:
    """Return what runs a module with this Python."""
    return [sys.executable, "-m", name, *arguments]


def run_ranks(
    num_ranks: int,
    program: Sequence[str],
    link: ShapedLink | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> str:
    """Run a program on so many ranks of this machine; return what they print.

    Parameters
    ----------
    link
        Between any two ranks; None: whatever MPI takes, which is shared memory.
    timeout_s
        After it all are ended.

    Raises
    ------
    ExecutionError
        It fails, or does not end in time.
    MissingPackageError
        There is no launcher.
    """
    launcher = [find_launcher(), "-n", str(num_ranks)]
    command, variables = [*launcher, *program], dict(os.environ)
    if link is not None:
        command = shaped_command(link, num_ranks, launcher, program)
        variables |= environment(num_ranks)
    # In a session of its own, so that all of it can be ended, launcher and ranks.
    process = subprocess.Popen(
        command,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, told = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        told = _ended(process)
        raise ExecutionError(
            f"{num_ranks} ranks did not end in {timeout_s:g} s: {_tail(told)}"
        ) from None
    finally:
        # Whatever ends the wait, as Ctrl-C.
        if process.poll() is None:
            _ended(process)
    if process.returncode != 0:
        raise ExecutionError(
            f"{num_ranks} ranks ended with status {process.returncode}: {_tail(told or out)}"
        )
    return out


def _ended(process: subprocess.Popen[str]) -> str:
    """End a launcher, which takes its ranks with it; return what it has told."""
    process.terminate()
    try:
        return process.communicate(timeout=_ENDED_S)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[1]


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_LINES_TOLD:])
