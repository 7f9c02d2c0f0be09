"""This machine as a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from heteroplace.machine.probe import local_cpu_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.tvm_bridge import llvm_cpu_target


def local_cluster(cores: Sequence[int] | None = None) -> Cluster:
    """Return this machine's CPU as a cluster: one device per core, and one of all cores.

    Parameters
    ----------
    cores
        The cores to use; None: all that this process may run on.

    Raises
    ------
    ClusterError
        `cores` is empty, has repeats, or holds a core that this process may not run on.

    Examples
    --------
    >>> local_cluster(cores=[0]).devices[0].name
    'cpu.all'
    """
    return local_cpu_cluster(llvm_cpu_target(), cores)
