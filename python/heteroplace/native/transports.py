"""Messages between the hosts of a plan: transports, and the check of all hosts' programs.

A thin face of `heteroplace._core` (see `src/exec/net` and `src/exec/program`).
"""

from __future__ import annotations

import heteroplace._core as _core
from heteroplace._core import Transport

__all__ = ["Transport", "check_programs", "local_transports"]


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


def local_transports(
    num_ranks: int, seed: int = 0, max_delay_ns: int = 0, is_buffered: bool = False
) -> list[Transport]:
    """Return the transports of ranks that are threads of this process, by rank.

    Parameters
    ----------
    seed, max_delay_ns
        Each message takes a random time of at most so long.
    is_buffered
        A send is over when its bytes are copied; else when they are received.
    """
    return list(_core.local_transports(num_ranks, seed, max_delay_ns, is_buffered))
