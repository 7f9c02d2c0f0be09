"""This process as one of the ranks of a job: who the others are, and its part of a program.

A thin interface to `heteroplace._core` (see `src/parts/hosts`). A rank is the process that runs one
host of a cluster; the rank whose host feeds and reads the model leads the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import heteroplace._core as _core
from heteroplace.errors import ExecutionError
from heteroplace.native.compiled_file import CompiledFile

RankedExecutor = _core.RankedExecutor
launched_ranks = _core.launched_ranks
local_transports = _core.local_transports
mpi_transport = _core.mpi_transport
end_mpi_at_exit = _core.end_mpi_at_exit


class Group:
    """The ranks of a job, met; the making of one waits for all others.

    Parameters
    ----------
    silence_s
        A rank that is silent for so many seconds has failed.

    Raises
    ------
    ExecutionError
        A rank failed meanwhile.
    """

    def __init__(self, transport: _core.Transport, silence_s: float) -> None:
        least_s, most_s = 1e-3, 1e9  # as in src/parts/hosts/group.h
        if not least_s <= silence_s <= most_s:
            raise ExecutionError(
                f"silence_s is {silence_s}; expected {least_s} to {most_s:g} seconds"
            )
        self.core = _core.meet(transport, silence_s)
        self.rank: int = self.core.rank
        self.num_ranks: int = self.core.num_ranks

    @property
    def transport_name(self) -> str:
        """What moves the bytes: "MPICH 5.0.2"."""
        return self.core.transport_name

    @property
    def host(self) -> int:
        """Position of the host that this rank runs; after `agree_on_file`."""
        return self.core.host

    @property
    def failure(self) -> str:
        """Why the job has failed; "": it has not."""
        return self.core.failure

    def name_of(self, rank: int) -> str:
        """Return "rank 1 (host 'b' on machine-7)"."""
        return self.core.name_of(rank)

    def fail(self, text: str) -> None:
        """End the job on all ranks."""
        self.core.fail(text)

    def agree_on_file(
        self,
        path: str,
        file: CompiledFile | None,
        fault: str = "",
        *,
        hosts: Sequence[str] = (),
        max_in_flight: int = 1,
    ) -> tuple[str, ...]:
        """Go on only if all ranks have the same file and options; all ranks.

        Parameters
        ----------
        file
            None with a fault: why it cannot be read here.
        hosts
            The host of each rank; empty: in the order of the cluster.

        Returns
        -------
        tuple of str
            Names of the hosts.

        Raises
        ------
        ExecutionError
            On all ranks: who has another file, version or option, or that there are too few or too
            many.
        """
        names = self.core.agree_on_file(path, file, fault, ",".join(hosts), max_in_flight)
        return tuple(names)
