"""Jobs of forks: each result is there once, and what a fork does not finish is done here."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heteroplace import forked_jobs
from heteroplace.forked_jobs import Job, run_forked
from tests.programs import child_processes

HERE = os.getpid()
NUM_JOBS = 12


def _worker() -> bytes:
    """Return who does the job."""
    time.sleep(0.01)
    return str(os.getpid()).encode()


def _results(job: Job, processes: int = 3) -> list[bytes]:
    return run_forked([job] * NUM_JOBS, processes=processes)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    processes, files = child_processes(), _num_open_files()
    yield
    assert child_processes() == processes
    assert _num_open_files() == files


def _num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("size", [0, 1, 100_000])
@pytest.mark.parametrize("processes", [1, 2, 5, 50])
def test_results_come_in_order(processes: int, size: int) -> None:
    counts: list[tuple[int, int]] = []
    results = run_forked(
        [lambda index=index: bytes([index]) * size for index in range(NUM_JOBS)],
        lambda done, total: counts.append((done, total)),
        processes,
    )
    assert results == [bytes([index]) * size for index in range(NUM_JOBS)]
    assert counts == sorted(counts)
    assert {total for _, total in counts} == {NUM_JOBS}


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_forks_do_the_jobs_where_several_processes_may(processes: int) -> None:
    workers = set(_results(_worker, processes))
    assert (str(HERE).encode() in workers) == (processes == 1)
    assert len(workers) <= processes


def test_each_job_is_done_once(tmp_path: Path) -> None:
    def done(index: int) -> bytes:
        with (tmp_path / str(index)).open("a") as file:
            file.write("x")
        return b""

    run_forked([lambda index=index: done(index) for index in range(300)], processes=4)
    assert {file.read_text() for file in tmp_path.iterdir()} == {"x"}
    assert len(list(tmp_path.iterdir())) == 300


def test_no_jobs() -> None:
    assert run_forked([]) == []


def test_an_error_is_that_of_the_job() -> None:
    def fail() -> bytes:
        raise KeyError("no such kernel")

    jobs = [*[_worker] * NUM_JOBS, fail, *[_worker] * NUM_JOBS]
    with pytest.raises(KeyError, match="no such kernel"):
        run_forked(jobs, processes=3)


def test_a_job_that_fails_in_forks_alone_is_done_here() -> None:
    def fail_elsewhere() -> bytes:
        if os.getpid() != HERE:
            raise OSError("no memory")
        return b"here"

    assert _results(fail_elsewhere) == [b"here"] * NUM_JOBS


def test_an_interrupt_ends_the_forks() -> None:
    def sleep() -> bytes:
        time.sleep(600)
        return b""

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_forked([sleep] * NUM_JOBS, interrupted, processes=3)


@pytest.mark.parametrize("end", ["killed", "asleep"])
def test_jobs_of_lost_forks_are_done_here(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_jobs, "_IDLE_POLLS", 3)

    def lost() -> bytes:
        if os.getpid() != HERE:
            if end == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        return _worker()

    assert _results(lost) == [str(HERE).encode()] * NUM_JOBS


def test_what_other_forks_finish_is_kept_when_one_is_lost(tmp_path: Path) -> None:
    def lost() -> bytes:
        if os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        return b"here"

    results = run_forked([_worker, lost, *[_worker] * NUM_JOBS], processes=3)
    assert results[1] == b"here"
    assert str(HERE).encode() not in results


def test_where_no_fork_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    assert set(_results(_worker)) == {str(HERE).encode()}
