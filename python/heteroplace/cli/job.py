"""A command that a launcher has started on several ranks: who they are, and how they end."""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from heteroplace.errors import HeteroPlaceError, MissingPackageError
from heteroplace.machine.hosts import (
    MachineShare,
    host_names,
    join_hosts,
    part_of,
    share_cores,
)
from heteroplace.measure.ranks import MpiRanks, Ranks
from heteroplace.model.cluster import Cluster

_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")
"""Variables in which launchers say how many ranks they start: MPICH's, Open MPI's, MPICH's of one
machine."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Which is another one on each machine, whatever it is called."""


def num_started(variables: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks the launcher has started; 1 if there is none.

    >>> num_started({"PMI_SIZE": "2"}), num_started({})
    (2, 1)
    """
    found = [variables[name] for name in _SIZES if variables.get(name, "").isdigit()]
    return max(map(int, found), default=1)


def job_ranks() -> MpiRanks | None:
    """Return all ranks that `mpiexec` has started; None: this process is alone.

    Raises
    ------
    MissingPackageError
        There are several, and no mpi4py, by which they meet.
    """
    if num_started() == 1:
        return None
    if importlib.util.find_spec("mpi4py") is None:
        raise MissingPackageError(
            f"a launcher has started {num_started()} ranks, which meet by the package mpi4py; it "
            f"is not installed: pip install 'heteroplace[mpi]', or start one process alone"
        )
    module = importlib.import_module("mpi4py.MPI")
    return MpiRanks(module.COMM_WORLD, module._handleof)


@contextmanager
def ended_together(ranks: MpiRanks) -> Iterator[None]:
    """End all ranks where one of them has an error, as the others would wait for it for ever."""
    try:
        yield
    except HeteroPlaceError as err:
        print(f"error on rank {ranks.rank}: {err}", file=sys.stderr, flush=True)
        ranks.abort()


def join_machines(
    ranks: Ranks, cores: Sequence[int], find: Callable[[Sequence[int]], Cluster]
) -> Cluster:
    """Return the machines of all ranks as one cluster, whose links are estimates; all ranks.

    Parameters
    ----------
    cores
        What this rank would use if it were alone on its machine.
    find
        Makes the cluster of this machine, of some cores.

    Raises
    ------
    ClusterError
        As `share_cores`.
    """
    own = MachineShare(_BOOT.read_text().strip(), socket.gethostname(), tuple(cores))
    shares = ranks.gather(own)
    num_here = sum(share.machine == own.machine for share in shares)
    part = part_of(find(share_cores(shares)[ranks.rank]), num_here)
    return join_hosts("hosts", host_names(shares), ranks.gather(part))
