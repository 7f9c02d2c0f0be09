"""The processes that measure together, one on each host, and what they tell each other.

Every rank calls the same functions with what all of them have, in one order, and finds the same.
"""

from __future__ import annotations

import time
from typing import Any, Protocol, TypeVar

from heteroplace.errors import ClusterError
from heteroplace.model.cluster import Cluster
from heteroplace.native.ranks import launched_ranks, mpi_transport
from heteroplace.native.transports import Transport
from heteroplace.parts.hosts.launcher import handle_of, world

_LOOK_S = 0.001
"""How often who waits for slower ranks looks for them: it must not take their cores."""

T = TypeVar("T")


class Ranks(Protocol):
    """The ranks of a job, seen from one of them."""

    @property
    def rank(self) -> int:
        """Which one it is."""

    @property
    def num_ranks(self) -> int:
        """How many there are."""

    def gather(self, value: T) -> list[T]:
        """Return what each rank gives, by rank; all ranks."""

    def transport(self) -> Transport:
        """Return messages for one more executor; all ranks."""


class MpiRanks:
    """The ranks of a communicator of mpi4py."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    @property
    def rank(self) -> int:
        """Which one it is."""
        return int(self._comm.rank)

    @property
    def num_ranks(self) -> int:
        """How many there are."""
        return int(self._comm.size)

    def gather(self, value: T) -> list[T]:
        """Return what each rank gives, by rank; all ranks. Values are pickled."""
        meeting = self._comm.Ibarrier()
        while not meeting.Test():
            time.sleep(_LOOK_S)
        return list(self._comm.allgather(value))

    def transport(self) -> Transport:
        """Return messages for one more executor; all ranks."""
        return mpi_transport(handle_of(self._comm))

    def abort(self) -> None:
        """End all ranks at once, after an error that the others do not know of."""
        self._comm.Abort(1)


def job_ranks() -> MpiRanks | None:
    """Return all ranks that the launcher has started; None: this process is alone.

    Raises
    ------
    MissingPackageError
        There are several, and no mpi4py, by which they meet.
    """
    return MpiRanks(world()) if launched_ranks() > 1 else None


def check_ranks(cluster: Cluster, ranks: Ranks) -> None:
    """Raise ClusterError unless there is a rank for each host."""
    if ranks.num_ranks != len(cluster.hosts):
        raise ClusterError(
            f"cluster {cluster.name!r} has the hosts {list(cluster.hosts)}, and there are "
            f"{ranks.num_ranks} ranks; start one for each: mpiexec -n {len(cluster.hosts)}"
        )
