"""Ranks as threads of one process, which meet as those of MPI do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from heteroplace.native.transports import Transport
from heteroplace.parts.hosts.native.core_ranks import local_transports
from heteroplace.run.transport import Ranks

T = TypeVar("T")
U = TypeVar("U")

MEET_S = 60.0


class Job:
    """What the ranks of one job share."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.meeting = threading.Barrier(num_ranks, timeout=MEET_S)
        self.values: list[Any] = [None] * num_ranks
        self.transports: tuple[Transport, ...] = ()


class ThreadRanks:
    """One rank; its thread alone calls it."""

    def __init__(self, job: Job, rank: int) -> None:
        self._job = job
        self.rank = rank
        self.num_ranks = job.num_ranks

    def gather(self, value: T) -> list[T]:
        job = self._job
        job.values[self.rank] = value
        job.meeting.wait()
        found = list(job.values)
        job.meeting.wait()
        return found

    def transport(self) -> Transport:
        job = self._job
        if self.rank == 0:
            job.transports = local_transports(self.num_ranks)
        self.gather(None)
        return job.transports[self.rank]


def on_ranks(num_ranks: int, function: Callable[[Ranks], U]) -> list[U]:
    """Return what a function gives on each rank."""
    job = Job(num_ranks)

    def of_rank(rank: int) -> U:
        try:
            return function(ThreadRanks(job, rank))
        except BaseException:
            job.meeting.abort()
            raise

    with ThreadPoolExecutor(num_ranks) as pool:
        futures = [pool.submit(of_rank, rank) for rank in range(num_ranks)]
        # The one that failed first, not those whom it left waiting.
        faults = [future.exception() for future in futures]
        for fault in faults:
            if fault is not None and not isinstance(fault, threading.BrokenBarrierError):
                raise fault
        return [future.result() for future in futures]
