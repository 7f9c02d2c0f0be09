"""Jobs of forks: each result is there once, and what a fork does not finish is done here."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heteroplace import forked_jobs
from heteroplace.forked_jobs import ForkedJobs, Job
from tests.programs import child_processes

HERE = os.getpid()
NUM_JOBS = 12


def _worker() -> bytes:
    """Return who does the job."""
    time.sleep(0.01)
    return str(os.getpid()).encode()


def _submitted(job: Job, processes: int = 3) -> ForkedJobs:
    jobs = ForkedJobs(processes)
    for _ in range(NUM_JOBS):
        jobs.submit(job)
    return jobs


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = child_processes()
    yield
    assert child_processes() == before


def _num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("processes", [1, 2, 5, 50])
def test_results_come_in_order(processes: int) -> None:
    jobs, files = ForkedJobs(processes), _num_open_files()
    for index in range(NUM_JOBS):
        jobs.submit(lambda index=index: bytes([index]) * 100_000)
    counts: list[tuple[int, int]] = []
    results = jobs.results(lambda done, total: counts.append((done, total)))
    assert results == [bytes([index]) * 100_000 for index in range(NUM_JOBS)]
    assert jobs.results() == results
    assert counts == sorted(counts)
    assert {total for _, total in counts} <= {NUM_JOBS}
    assert _num_open_files() == files


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_forks_work_where_several_processes_may(processes: int) -> None:
    workers = set(_submitted(_worker, processes).results())
    others = workers - {str(HERE).encode()}
    assert bool(others) == (processes > 1)


def test_jobs_begin_before_results_are_asked_for(tmp_path: Path) -> None:
    jobs, begun = ForkedJobs(2), tmp_path / "begun"

    def begin() -> bytes:
        begun.touch()
        return b""

    jobs.submit(begin)
    limit = time.monotonic() + 60
    while not begun.exists() and time.monotonic() < limit:
        time.sleep(0.001)
    assert begun.exists()
    assert jobs.results() == [b""]


def test_no_jobs() -> None:
    assert ForkedJobs().results() == []


def test_an_error_is_that_of_the_job() -> None:
    def fail() -> bytes:
        raise KeyError("no such kernel")

    with pytest.raises(KeyError, match="no such kernel"):
        _submitted(fail).results()


def test_an_interrupt_ends_the_forks() -> None:
    def interrupted() -> bytes:
        if os.getpid() == HERE:
            raise KeyboardInterrupt
        time.sleep(600)
        return b""

    jobs = _submitted(interrupted)
    with pytest.raises(KeyboardInterrupt):
        jobs.results()


@pytest.mark.parametrize("end", ["killed", "asleep"])
def test_jobs_of_lost_forks_are_done_here(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_jobs, "_IDLE_POLLS", 3)

    def lost() -> bytes:
        if os.getpid() != HERE:
            if end == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        return _worker()

    assert _submitted(lost).results() == [str(HERE).encode()] * NUM_JOBS


def test_paused_jobs_are_done_later(tmp_path: Path) -> None:
    is_first_time = tmp_path / "first"
    is_first_time.touch()

    def slow_the_first_time() -> bytes:
        if is_first_time.exists():
            time.sleep(600)
        return b"done"

    jobs = _submitted(slow_the_first_time)
    before = child_processes()
    jobs.pause()
    assert len(child_processes()) == len(before) - 2
    is_first_time.unlink()
    assert jobs.results() == [b"done"] * NUM_JOBS


def test_forks_end_with_what_asked_for_them() -> None:
    def sleep() -> bytes:
        time.sleep(600)
        return b""

    before = child_processes()
    jobs = _submitted(sleep)
    assert len(child_processes()) == len(before) + 2
    del jobs
    assert child_processes() == before


def test_where_no_fork_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    files = _num_open_files()
    monkeypatch.setattr(os, "fork", fork)
    assert set(_submitted(_worker).results()) == {str(HERE).encode()}
    assert _num_open_files() == files
