"""Functions that return bytes -> their results, computed on all cores by forks of this process.

A fork has all that this process has in memory, so a function needs no arguments. Its result comes
back in a file in memory. What a fork does not finish, for whatever reason, is done here.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import warnings
from collections import deque
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Fork:
    """A process that does one job."""

    pid: int
    result: int
    """File in memory."""
    life: int
    """End of a pipe whose other end only the process has: it can be read when the process ends."""


class ForkedJobs:
    """Does each job as soon as a core is free.

    Threads of this process do not exist in its forks, so no job may wait for one. Not thread-safe.

    Parameters
    ----------
    processes
        Most processes at work, this one included; 0: as many as the calling thread has cores.
    """

    def __init__(self, processes: int = 0) -> None:
        self._most_forks = (processes or usable_cores()) - 1
        self._jobs: list[Job] = []
        self._waiting: deque[int] = deque()
        self._running: dict[int, _Fork] = {}
        self._unfinished: list[int] = []
        """Jobs that a fork began and did not finish."""
        self._results: dict[int, bytes] = {}

    def submit(self, job: Job) -> None:
        """Begin a job in a fork if a core is free, or else later. What the job reads may not change
        before that."""
        self._waiting.append(len(self._jobs))
        self._jobs.append(job)
        self._advance()

    def results(self, on_done: Count | None = None) -> list[bytes]:
        """Do all jobs that are left, also in this process, and return the results in order.

        Parameters
        ----------
        on_done
            Counts the jobs that are done.

        Raises
        ------
        Exception
            What a job raises. Forks end, and the jobs can be asked for again.
        """
        try:
            while self._waiting or self._running:
                if on_done is not None:
                    on_done(len(self._results), len(self._jobs))
                if self._waiting:
                    self._do(self._waiting.popleft())
                else:
                    self._wait()
                self._advance()
            while self._unfinished:
                self._do(self._unfinished.pop())
        except BaseException:
            self.pause()
            raise
        return [self._results[index] for index in range(len(self._jobs))]

    def pause(self) -> None:
        """End all forks; what they have not finished is done when results are asked for."""
        self._end_forks()
        self._collect()
        self._waiting.extendleft(self._unfinished)
        self._unfinished.clear()

    def __del__(self) -> None:
        self._end_forks()
        self._collect()

    def _do(self, index: int) -> None:
        try:
            self._results[index] = self._jobs[index]()
        except BaseException:
            self._unfinished.append(index)
            raise

    def _advance(self) -> None:
        """Take what forks have finished, and start others."""
        self._collect()
        while self._waiting and len(self._running) < self._most_forks:
            try:
                self._running[self._waiting[0]] = _start(self._jobs[self._waiting[0]])
            except OSError:  # of processes, memory or files: there are fewer forks
                return
            self._waiting.popleft()

    def _collect(self) -> None:
        for index, fork in list(self._running.items()):
            if _has_ended([fork], 0):
                del self._running[index]
                result = _take(fork)
                if result is None:
                    self._unfinished.append(index)
                else:
                    self._results[index] = result

    def _wait(self) -> None:
        """Return when a fork has ended. If all only wait, they are killed."""
        forks = self._running.values()
        idle_polls, ticks = 0, -1
        while not _has_ended(forks, _POLL_S):
            before, ticks = ticks, sum(_cpu_ticks(fork.pid) for fork in forks)
            idle_polls = idle_polls + 1 if ticks == before else 0
            if idle_polls == _IDLE_POLLS:
                self._end_forks()

    def _end_forks(self) -> None:
        for fork in self._running.values():
            with suppress(ProcessLookupError):
                os.kill(fork.pid, signal.SIGKILL)
        for fork in self._running.values():
            _has_ended([fork], None)


def _start(job: Job) -> _Fork:
    """Do a job in a fork of this process.

    Raises
    ------
    OSError
        There are not enough processes, memory or files left.
    """
    with ExitStack() as on_error:
        result = os.memfd_create("result")
        on_error.callback(os.close, result)
        life, others_life = os.pipe()
        on_error.callback(os.close, life)
        try:
            pid = _fork()
            if pid == 0:
                _do_and_end(job, result)
        finally:
            os.close(others_life)
        on_error.pop_all()
    return _Fork(pid, result, life)


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 warns that other threads may hold locks: `ForkedJobs._wait` ends such a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _do_and_end(job: Job, result: int) -> NoReturn:
    """In a fork: write the result, and end without any clean-up."""
    status = 1  # if the job fails, the parent does it again, and raises the error
    try:
        ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_END, signal.SIGKILL)
        gc.disable()  # what is collected here might join threads that are not here
        with os.fdopen(result, "wb", closefd=False) as file:
            file.write(job())
        status = 0
    finally:
        os._exit(status)


def _take(fork: _Fork) -> bytes | None:
    """Return what a fork that has ended left; None: it did not finish."""
    os.close(fork.life)
    try:
        is_done = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1]) == 0
    except ChildProcessError:  # another part of the program waits for all its processes
        is_done = False
    with os.fdopen(fork.result, "rb") as file:
        file.seek(0)
        return file.read() if is_done else None


def _has_ended(forks: Collection[_Fork], timeout_s: float | None) -> bool:
    """Wait until one of these forks has ended, and tell whether one has."""
    poll = select.poll()
    for fork in forks:
        poll.register(fork.life, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


def _cpu_ticks(pid: int) -> int:
    """Processor time of a process so far; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
