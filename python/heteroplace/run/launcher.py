"""The environment of a process -> the communicator of the ranks that a launcher of MPI started.

mpi4py begins MPI and has the communicator; nothing else of it takes part.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from typing import Any

from heteroplace.errors import ExecutionError, MissingPackageError

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS")
"""Where launchers write how many ranks they start: Open MPI, MPICH and its kin, Slurm."""
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
"""Where they write which one a process is."""


def launched_ranks() -> int:
    """Return how many ranks the launcher of this process has started; 1: there is none."""
    if not any(name in os.environ for name in _RANKS):
        return 1
    for name in _SIZES:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 1


def world() -> Any:
    """Return mpi4py's communicator of all ranks, which begins MPI.

    Raises
    ------
    MissingPackageError
        mpi4py is not installed, or finds no library of MPI.
    """
    return _mpi().COMM_WORLD


def handle_of(comm: Any) -> int:
    """Return MPI's handle of a communicator of mpi4py.

    Raises
    ------
    ExecutionError
        It is none.
    """
    mpi = _mpi()
    if not isinstance(comm, mpi.Comm):
        raise ExecutionError(
            f"comm is a {type(comm).__name__}; expected a communicator of mpi4py, as MPI.COMM_WORLD"
        )
    # Version 3 of mpi4py has only the place where the handle is: an int or a pointer.
    size = mpi._sizeof(comm)
    read = ctypes.c_uint32 if size == ctypes.sizeof(ctypes.c_uint32) else ctypes.c_uint64
    return int(read.from_address(mpi._addressof(comm)).value)


def _mpi() -> Any:
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as err:
        raise MissingPackageError(
            f"a file for several hosts needs mpi4py and a library of MPI ({err}); install "
            "heteroplace[mpi], or mpi4py for the MPI of this site"
        ) from err
