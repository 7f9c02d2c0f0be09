"""The transport `mpi`: what a launcher of MPI started -> ranks, clusters and executors.

Only what a call needs is loaded: without a launcher, nothing of MPI and nothing of TVM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from heteroplace.entries import load_entry
from heteroplace.model.cluster import Cluster
from heteroplace.native.transports import Transport
from heteroplace.parts.hosts.launcher import handle_of, is_end_left, world, world_of_ranks
from heteroplace.parts.hosts.native.core_ranks import (
    Group,
    end_mpi_at_exit,
    launched_ranks,
    mpi_transport,
)
from heteroplace.run.transport import RankOptions, Ranks

_LOOK_S = 0.001
"""How often who waits for slower ranks looks for them: it must not take their cores."""

T = TypeVar("T")


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
        """Return the value of each rank, by rank; all ranks. Values are pickled."""
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


class MpiHosts:
    """Hosts that an MPI library connects; see `heteroplace.run.transport.HostTransport`."""

    def num_launched_ranks(self) -> int:
        """Return how many ranks the launcher of this process has started; 1: there is none."""
        return launched_ranks()

    def launched_ranks(self) -> MpiRanks:
        """Return all ranks that the launcher has started; all ranks.

        Raises
        ------
        MissingPackageError
            mpi4py is not installed, or finds no library of MPI.
        """
        return MpiRanks(world())

    def join_machines(
        self, ranks: Ranks, cores: Sequence[int], probe: Callable[[Sequence[int]], Cluster]
    ) -> Cluster:
        """Return the machines of all ranks as one cluster; see `machines.join_machines`."""
        join = load_entry("heteroplace.parts.hosts.machines:join_machines")
        cluster: Cluster = join(ranks, cores, probe)
        return cluster

    def measure_hosts(
        self, cluster: Cluster, ranks: Ranks, progress: Callable[[str], None] | None, options: Any
    ) -> tuple[Cluster, list[Any]]:
        """Return the cluster with measured links, and their reports; all ranks."""
        measure = load_entry("heteroplace.parts.hosts.probe_hosts:measure_hosts")
        measured: tuple[Cluster, list[Any]] = measure(cluster, ranks, progress, options)
        return measured

    def profile_hosts(
        self, cluster: Cluster, ranks: Ranks, options: Any, profile: Callable[[Cluster, Any], Any]
    ) -> Any:
        """Return one profile of what all hosts measure; see `profile_hosts.profile_hosts`."""
        measure = load_entry("heteroplace.parts.hosts.profile_hosts:profile_hosts")
        return measure(cluster, ranks, options, profile)

    def load(
        self,
        path: str,
        trusted_keys: Sequence[Any] | None,
        rank_options: RankOptions,
        **options: Any,
    ) -> Any:
        """Load a compiled file as one of its ranks; all ranks.

        Raises
        ------
        HeteroPlaceError
            As `ranked_executor.load_as_rank`.
        """
        comm = world_of_ranks() if rank_options.comm is None else rank_options.comm
        transport = mpi_transport(handle_of(comm))
        if is_end_left():
            end_mpi_at_exit()
        group = Group(transport, rank_options.silence_s)
        load_entry("heteroplace.parts.hosts.ranked_executor:abort_after_failure")(group, comm)
        load_as_rank = load_entry("heteroplace.parts.hosts.ranked_executor:load_as_rank")
        return load_as_rank(path, group, rank_options.hosts, trusted_keys, **options)


MPI = MpiHosts()
"""The entry point `mpi` of the group `heteroplace.transports`."""
