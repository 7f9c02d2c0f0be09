"""The seam `Transport`: a job of several processes -> its ranks, which meet, measure and run.

A part registers one in the group `heteroplace.transports`; ours is `mpi`. A rank is the process
that runs one host of a cluster. Every rank calls the same functions, in one order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from heteroplace.errors import ClusterError, MissingPackageError
from heteroplace.native.transports import Transport
from heteroplace.registry import load_plugins

if TYPE_CHECKING:
    from heteroplace.model.cluster import Cluster

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
        """Return the value of each rank, by rank; all ranks. Values are pickled."""

    def transport(self) -> Transport:
        """Return messages for one more executor; all ranks."""


class LaunchedRanks(Ranks, Protocol):
    """All ranks that a launcher has started."""

    def abort(self) -> None:
        """End all ranks at once, after an error that the others do not know of."""


@dataclass(frozen=True)
class RankOptions:
    """How the ranks of a job load a file."""

    comm: Any = None
    """The communicator of the ranks, of the transport's own kind. None: all launched ranks."""
    hosts: Sequence[str] = ()
    """The host of each rank, by name; empty: in the order of the cluster."""
    silence_s: float = 30.0
    """A rank that is silent for so many seconds has failed."""


class HostTransport(Protocol):
    """How processes on several hosts meet and exchange messages."""

    def num_launched_ranks(self) -> int:
        """Return how many ranks the launcher of this process has started; 1: there is none."""

    def launched_ranks(self) -> LaunchedRanks:
        """Return all ranks that the launcher has started; all ranks."""

    def join_machines(
        self, ranks: Ranks, cores: Sequence[int], probe: Callable[[Sequence[int]], Cluster]
    ) -> Cluster:
        """Return the machines of all ranks as one cluster, whose links are estimates; all ranks.

        `cores`: what this rank would use if it were alone on its machine. `probe` makes the
        cluster of this machine from some cores.
        """

    def measure_hosts(
        self, cluster: Cluster, ranks: Ranks, progress: Callable[[str], None] | None, options: Any
    ) -> tuple[Cluster, list[Any]]:
        """Return the cluster with measured links, and their reports; all ranks.

        `options`: see `heteroplace.measure.transfers.links`.
        """

    def profile_hosts(
        self, cluster: Cluster, ranks: Ranks, options: Any, profile: Callable[[Cluster, Any], Any]
    ) -> Any:
        """Return one profile of what all hosts measure of a model; all ranks.

        `options`: see `heteroplace.measure.measure_options`. `profile` measures the devices of
        one host and returns a `heteroplace.measure.model_profile.ModelProfile`, as this does.
        """

    def load(
        self,
        path: str,
        trusted_keys: Sequence[Any] | None,
        rank_options: RankOptions,
        **options: Any,
    ) -> Any:
        """Load a compiled file as one of its ranks and return an `Executor`; all ranks.

        `options`: of `heteroplace.run.executor.Executor`.
        """


def launched_transport() -> HostTransport | None:
    """Return the transport whose launcher has started several ranks; None: this one is alone."""
    transports: Sequence[HostTransport] = tuple(load_plugins("transports").values())
    return next((each for each in transports if each.num_launched_ranks() > 1), None)


def host_transport() -> HostTransport:
    """Return the transport that started this process, else the first one by name.

    Raises
    ------
    MissingPackageError
        None is registered.
    """
    for transport in (launched_transport(), *load_plugins("transports").values()):
        if transport is not None:
            chosen: HostTransport = transport
            return chosen
    raise MissingPackageError(
        "several hosts need a transport, and no installed package registers one in the group "
        "'heteroplace.transports'; install heteroplace with its part `hosts`"
    )


def check_ranks(cluster: Cluster, ranks: Ranks) -> None:
    """Raise ClusterError unless there is a rank for each host."""
    if ranks.num_ranks != len(cluster.hosts):
        raise ClusterError(
            f"cluster {cluster.name!r} has the hosts {list(cluster.hosts)}, and there are "
            f"{ranks.num_ranks} ranks; start one for each: mpiexec -n {len(cluster.hosts)}"
        )
