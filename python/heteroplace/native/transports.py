"""Messages between the hosts of a plan: transports, and the check of all hosts' programs.

A thin interface to `heteroplace._core` (see `src/exec/net`, `src/parts/hosts`, `src/exec/program`).
"""

from __future__ import annotations

import heteroplace._core as _core
from heteroplace._core import Transport

__all__ = ["Transport", "check_programs", "local_transports"]


def local_transports(
    num_ranks: int, *, seed: int = 0, max_delay_ns: int = 0, is_buffered: bool = False
) -> tuple[Transport, ...]:
    """Make the transports of ranks that are threads of this process, where there is no MPI.

    Parameters
    ----------
    seed
        Of the delays.
    max_delay_ns
        Each message takes from 0 to this long after both sides have started it.
    is_buffered
        A send is complete when its bytes are taken, not when they are received.

    Returns
    -------
    tuple of Transport
        By rank; each for one executor.
    """
    return tuple(_core.local_transports(num_ranks, seed, max_delay_ns, is_buffered))


def check_programs(text: str) -> tuple[str, ...]:
    """Check the programs of all hosts, each alone and all together, or of one host alone.

    Returns
    -------
    tuple of str
        Names of the hosts, by rank; "" for one without a name.

    Raises
    ------
    ArtifactError
        A line is wrong, a message has not its two ends, or the programs would deadlock.
    """
    return tuple(_core.check_programs(text))
