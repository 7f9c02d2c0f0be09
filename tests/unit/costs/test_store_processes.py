"""Several processes at one store, and processes that are killed in the middle of it."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from heteroplace.costs.store import CostStore
from tests.measurements import row
from tests.programs import environment, run_python

_TIME_LIMIT_S = 60
# Writes as many measurements as it is told to (0: until it is killed), and says after each one
# that it is stored.
_WRITER = """
import itertools, os, sys
from tests.measurements import row
from heteroplace.costs.store import CostStore

path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.stdin.readline()
with CostStore(path) as store:
    for number in range(first, first + count) if count else itertools.count(first):
        store.add(*row(number))
        os.write(1, b"%d\\n" % number)
"""


def start_writer(path: Path, first: int, count: int = 0) -> subprocess.Popen[str]:
    """A process that is ready to write; it begins when it reads a line."""
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path), str(first), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def begin(writers: list[subprocess.Popen[str]]) -> None:
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()


def first_line(writer: subprocess.Popen[str]) -> str:
    """The first thing it says, read without a buffer: `communicate` returns all that follows.

    `readline` would also take what a writer that is ahead has said since, and `communicate` does
    not return what is in that buffer.
    """
    assert writer.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(writer.stdout.fileno(), 1)
        assert byte, "it ended before it said anything"
        line += byte
    return line.decode()


def check_integrity(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def stored(path: Path) -> set[int]:
    with CostStore(path, is_made=False) as store:
        return {int(key.kernel, 16) for key, _ in store.rows()}


@pytest.mark.costly
@pytest.mark.parametrize("is_empty_file", [False, True])
@pytest.mark.timeout(2 * _TIME_LIMIT_S)
def test_eight_processes_make_one_store_and_write_to_it(tmp_path: Path, is_empty_file) -> None:
    path = tmp_path / "costs.sqlite"
    if is_empty_file:
        path.touch()
    writers = [start_writer(path, 100 * index, 40) for index in range(8)]
    begin(writers)
    for writer in writers:
        _, faults = writer.communicate(timeout=_TIME_LIMIT_S)
        assert writer.returncode == 0, faults
    assert stored(path) == {100 * index + number for index in range(8) for number in range(40)}
    check_integrity(path)
    assert [found.name for found in tmp_path.iterdir()] == ["costs.sqlite"]


@pytest.mark.timeout(2 * _TIME_LIMIT_S)
def test_killed_writers_lose_at_most_the_measurement_they_were_writing(tmp_path: Path) -> None:
    path = tmp_path / "costs.sqlite"
    moments = random.Random(5)
    size = 1_000_000
    writers = [start_writer(path, size * index) for index in range(6)]
    acknowledged: dict[int, int] = {}
    for index, writer in enumerate(writers):
        begin([writer])
        # One writer after the other is killed, while those before it are dead and have left
        # their log behind; the first of all, perhaps, while it makes the store.
        if index == 0:
            time.sleep(moments.uniform(0, 0.4))
        else:
            first_line(writer)
            time.sleep(moments.uniform(0, 0.1))
        writer.send_signal(signal.SIGKILL)
        said, faults = writer.communicate(timeout=_TIME_LIMIT_S)
        assert writer.returncode == -signal.SIGKILL, faults
        # The last line may be cut off, and the first one was read above.
        lines = said.split("\n")[:-1]
        acknowledged[index] = int(lines[-1]) % size + 1 if lines else int(index > 0)
    found = stored(path)
    for index, count in acknowledged.items():
        numbers = sorted(number % size for number in found if number // size == index)
        assert numbers in (list(range(count)), list(range(count + 1)))
    check_integrity(path)


@pytest.mark.timeout(2 * _TIME_LIMIT_S)
def test_writers_that_are_killed_together_lose_at_most_one_each(tmp_path: Path) -> None:
    path = tmp_path / "costs.sqlite"
    size = 1_000_000
    writers = [start_writer(path, size * index) for index in range(4)]
    begin(writers)
    for writer in writers:
        assert int(first_line(writer)) % size == 0
    time.sleep(0.2)
    for writer in writers:
        writer.kill()
    said = [writer.communicate(timeout=_TIME_LIMIT_S)[0].split("\n")[:-1] for writer in writers]
    found = stored(path)
    for index, lines in enumerate(said):
        count = int(lines[-1]) % size + 1 if lines else 1
        numbers = sorted(number % size for number in found if number // size == index)
        assert numbers in (list(range(count)), list(range(count + 1)))
    check_integrity(path)
    with CostStore(path) as store:
        store.add(*row(7))


def test_a_store_may_be_used_on_both_sides_of_a_fork(tmp_path: Path) -> None:
    program = f"""
import os
from tests.measurements import row
from heteroplace.costs.store import CostStore

with CostStore({str(tmp_path / "costs.sqlite")!r}) as store:
    store.add(*row(0))
    child = os.fork()
    for number in range(50):
        store.add(*row(number + (0 if child else 100)))
    if child == 0:
        store.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    store.add(*row(1000))
    print(len(store))
"""
    assert run_python(program) == "101\n"
    check_integrity(tmp_path / "costs.sqlite")


def test_a_full_disk_is_an_error_that_says_so_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "costs.sqlite"
    program = f"""
import resource
from tests.measurements import row
from heteroplace.costs.store import CostStore
from heteroplace.errors import CostStoreError

with CostStore({str(path)!r}) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, resource.RLIM_INFINITY))
    number = 0
    try:
        while True:
            store.add(*row(number))
            number += 1
    except CostStoreError as fault:
        print(number, fault)
"""
    number, message = run_python(program).strip().split(" ", 1)
    assert message.startswith(f"{path}: the store cannot be used: ")
    assert stored(path) == set(range(int(number)))
    check_integrity(path)
