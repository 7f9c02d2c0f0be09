"""This process -> the communicator of the ranks that a launcher of MPI started.

mpi4py begins MPI and has the communicator; nothing else of it takes part.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from typing import Any

from heteroplace.errors import ExecutionError, MissingPackageError


def world() -> Any:
    """Return mpi4py's communicator of all ranks, which begins MPI.

    Raises
    ------
    MissingPackageError
        mpi4py is not installed, or finds no library of MPI.
    """
    return _mpi().COMM_WORLD


def world_of_ranks() -> Any:
    """Return the same for a file to be loaded, and leave the end of MPI to `end_mpi_at_exit`.

    mpi4py ends MPI in every process that has it, so in children of a rank, which are none: they
    would wait for the launcher for ever. Where it is imported already it still does.

    Raises
    ------
    MissingPackageError
        As `world`.
    """
    if "mpi4py.MPI" not in sys.modules and importlib.util.find_spec("mpi4py") is not None:
        options = importlib.import_module("mpi4py").rc
        if options.finalize is None:
            options.finalize = False
    return world()


def is_end_left() -> bool:
    """Return whether mpi4py, which has begun MPI, does not end it."""
    return importlib.import_module("mpi4py").rc.finalize is False


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
