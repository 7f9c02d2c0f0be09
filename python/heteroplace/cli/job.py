"""A command that a launcher has started on several ranks -> all ranks end together."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from heteroplace.errors import HeteroPlaceError
from heteroplace.run.transport import LaunchedRanks


@contextmanager
def ended_together(ranks: LaunchedRanks) -> Iterator[None]:
    """End all ranks where one of them has an error, as the others would wait for it for ever.

    The error is raised again, since this rank goes on until the launcher ends it.
    """
    try:
        yield
    except HeteroPlaceError as err:
        print(f"error on rank {ranks.rank}: {err}", file=sys.stderr, flush=True)
        ranks.abort()
        raise
