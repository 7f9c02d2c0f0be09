"""A command that a launcher has started on several ranks: their machines, and how they end."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from heteroplace.errors import HeteroPlaceError
from heteroplace.model.cluster import Cluster
from heteroplace.parts.hosts.machines import (
    MachineShare,
    host_names,
    join_hosts,
    part_of,
    share_cores,
)
from heteroplace.run.transport import MpiRanks, Ranks

_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Which is another one on each machine, whatever it is called."""


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
