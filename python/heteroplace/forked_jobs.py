"""Functions that return bytes -> their results, computed on all cores by forks of this process.

A fork has all that this process has in memory, so a function needs no arguments. What the forks do
not finish, for whatever reason, is done here.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import struct
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import NoReturn

from heteroplace.control_groups import usable_cores
from heteroplace.stage_log import Count

Job = Callable[[], bytes]

_POLL_S = 0.1
_IDLE_POLLS = 100
"""Forks that compute nothing for so long wait for locks that threads of their parent held."""
_SIGNAL_AT_PARENTS_END = 1
"""PR_SET_PDEATHSIG of Linux."""
_NUMBER = struct.Struct("<q")
"""Of a job: a fork is sent it, and sends it back before the result, or alone if the job has
failed."""


def run_forked(
    jobs: Sequence[Job], on_done: Count | None = None, processes: int = 0
) -> list[bytes]:
    """Do all jobs, and return the results in order.

    Threads of this process do not exist in its forks, so no job may wait for one.

    Parameters
    ----------
    on_done
        Counts the jobs that are done.
    processes
        How many work at a time; 0: as many as the calling thread has cores. If it is 1, that is
        this process.

    Raises
    ------
    Exception
        What a job raises. No fork is left.
    """
    results: dict[int, bytes] = {}
    num_forks = min(processes or usable_cores(), len(jobs))
    failed = _Forks(jobs, num_forks).run(results, on_done) if num_forks > 1 else None
    order = range(len(jobs)) if failed is None else [failed, *range(len(jobs))]
    for number in order:
        if number not in results:
            if on_done is not None:
                on_done(len(results), len(jobs))
            results[number] = jobs[number]()
    return [results[number] for number in range(len(jobs))]


class _Forks:
    """Processes that are given one job after another."""

    def __init__(self, jobs: Sequence[Job], num_forks: int) -> None:
        self._jobs = jobs
        self._num_forks = num_forks
        self._numbers = iter(range(len(jobs)))
        """Of the jobs that nobody has."""
        self._pids: dict[Connection, int] = {}
        """By the end of the connection to a fork."""

    def run(self, results: dict[int, bytes], on_done: Count | None) -> int | None:
        """Let the forks do the jobs until all have ended, or one has failed; return that one."""
        try:
            for _ in range(self._num_forks):
                with suppress(OSError):  # of processes, memory or files: there are fewer forks
                    self._start()
            idle_polls, ticks = 0, -1
            while self._pids:
                if on_done is not None:
                    on_done(len(results), len(self._jobs))
                ready = wait(list(self._pids), _POLL_S)
                for end in [each for each in self._pids if each in ready]:
                    failed = self._take(end, results)
                    if failed is not None:
                        return failed
                before, ticks = ticks, sum(map(_cpu_ticks, self._pids.values()))
                idle_polls = idle_polls + 1 if ticks == before and not ready else 0
                if idle_polls == _IDLE_POLLS:
                    break
        finally:
            self._end(self._pids.keys())
        return None

    def _start(self) -> None:
        own, others = Pipe()
        with others:
            try:
                pid = _fork()
            except OSError:
                own.close()
                raise
            if pid == 0:
                _work(self._jobs, others)
        self._pids[own] = pid
        self._give(own)

    def _give(self, end: Connection) -> None:
        """Give a fork its next job; without any it is not needed."""
        number = next(self._numbers, None)
        if number is None:
            self._end([end])
        else:
            with suppress(OSError):  # it has ended, which `_take` notices
                end.send_bytes(_NUMBER.pack(number))

    def _take(self, end: Connection, results: dict[int, bytes]) -> int | None:
        """Take what a fork sends; return the number of a job that has failed."""
        try:
            message = end.recv_bytes()
        except (EOFError, OSError):  # it has ended, perhaps amid a message
            self._end([end])
            return None
        (number,) = _NUMBER.unpack_from(message)
        if len(message) == _NUMBER.size:
            return int(number)
        results[number] = message[_NUMBER.size + 1 :]
        self._give(end)
        return None

    def _end(self, ends: Collection[Connection]) -> None:
        pids = {end: self._pids.pop(end) for end in list(ends)}
        for end, pid in pids.items():
            end.close()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids.values():
            with suppress(ChildProcessError):  # another part of the program waits for all processes
                os.waitpid(pid, 0)


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 warns that other threads may hold locks: `_Forks.run` ends such a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _work(jobs: Sequence[Job], parent: Connection) -> NoReturn:
    """In a fork: do jobs until the parent ends it."""
    try:
        ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_END, signal.SIGKILL)
        gc.disable()  # what is collected here might join threads that are not here
        while True:
            number = parent.recv_bytes()
            try:
                # A result may be empty, so a byte tells it from none.
                message = number + b"\0" + jobs[_NUMBER.unpack(number)[0]]()
            except Exception:
                message = number  # the parent does the job again, and raises the error
            parent.send_bytes(message)
    finally:
        os._exit(1)


def _cpu_ticks(pid: int) -> int:
    """Processor time of a process so far; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
