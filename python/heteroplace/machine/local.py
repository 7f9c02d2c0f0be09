"""This machine as a cluster, and the name of a cluster -> the cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence

from heteroplace.argument_checks import check_sequence
from heteroplace.errors import ClusterError
from heteroplace.files.cluster_file import load_cluster
from heteroplace.machine.gpu import read_gpus
from heteroplace.machine.probe import local_cpu_cluster, with_gpus
from heteroplace.model.cluster import Cluster
from heteroplace.tvm_bridge import llvm_cpu_target

LOCAL = "local"
"""Name of the cluster that is this machine."""


def local_cluster(cores: Sequence[int] | None = None, *, has_gpus: bool = True) -> Cluster:
    """Return this machine as a cluster: a device per core, one of all cores, one per NVIDIA GPU.

    The links of GPUs are what their slots carry at best; `heteroplace probe` measures them.

    Parameters
    ----------
    cores
        The cores to use; None: all that this process may run on.
    has_gpus
        False: the CPU alone.

    Raises
    ------
    ClusterError
        `cores` is empty, has repeats, or holds a core that this process may not run on; a GPU's
        driver does not answer.
    MissingPackageError
        There is a GPU's driver, but not nvidia-ml-py, which asks it.

    Examples
    --------
    >>> local_cluster(cores=[0], has_gpus=False).devices[0].name
    'cpu.all'
    """
    if cores is not None:
        check_sequence("cores", cores, int, "numbers of cores, such as [0, 1]", ClusterError)
    cpu = local_cpu_cluster(llvm_cpu_target(), cores)
    gpus = read_gpus() if has_gpus else ()
    return with_gpus(cpu, gpus) if gpus else cpu


def open_cluster(path_or_name: str | os.PathLike[str]) -> Cluster:
    """Return the cluster in a file, a ready-made one, or "local": this machine.

    Raises
    ------
    ClusterError
        As `load_cluster` and `local_cluster`.
    """
    return local_cluster() if path_or_name == LOCAL else load_cluster(path_or_name)
