"""Where workers may go, and the turns that they ask for: short ones where they sleep meanwhile."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from executor_programs import needs_two_cores

from heteroplace.lower.program import Program, Queue, Space
from heteroplace.measure.transfers.link_programs import load_program

pytestmark = pytest.mark.timeout(60)

SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}.get(platform.machine())
ATTRIBUTES = "IIQiIQQQ"
"""Size, policy, flags, nice, priority, and in ns runtime (the turn), deadline, period."""
SHORT_NS = 100_000

Seen = TypeVar("Seen")


def attributes(thread: int) -> tuple[int, ...]:
    """What the system knows of a thread: policy, flags, nice, priority, ns of its turn."""
    found = ctypes.create_string_buffer(struct.calcsize(ATTRIBUTES))
    system = ctypes.CDLL(None, use_errno=True)
    if system.syscall(SCHED_GETATTR, thread, found, len(found), 0) != 0:
        raise OSError(ctypes.get_errno(), "sched_getattr")
    return struct.unpack(ATTRIBUTES, found.raw)[1:6]


def threads() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}


def tells_turns() -> bool:
    """Since Linux 6.12 threads may ask for turns, and are told the usual one before."""
    return SCHED_GETATTR is not None and attributes(0)[4] != 0


needs_turns = pytest.mark.skipif(not tells_turns(), reason="this system has no turns to ask for")


def workers(*cores: int | None) -> list[tuple[int, ...]]:
    """Attributes of workers, each of a queue on a core or of one for copies."""
    return seen(attributes, *cores)


def seen(look: Callable[[int], Seen], *cores: int | None) -> list[Seen]:
    """What is seen of the thread of each worker."""
    queues = tuple(
        Queue("copy", "copy", (1, 0), -1, None)
        if core is None
        else Queue("core", "cpu", (1, 0), 0, core)
        for core in cores
    )
    before = threads()
    executor = load_program(Program((Space("ram", (1, 0), 1),), queues, (), (), (), (), ()))
    found = [look(thread) for thread in sorted(threads() - before)]
    assert len(found) == len(executor.queues) == len(cores)
    return found


@needs_turns
def test_a_worker_without_a_core_asks_for_short_turns_and_nothing_else() -> None:
    own = attributes(0)
    assert workers(None) == [(*own[:4], SHORT_NS)]


@needs_turns
@needs_two_cores
def test_a_worker_that_spins_through_its_waits_keeps_its_turns() -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    assert workers(*cores) == [attributes(0)] * 2


@needs_turns
def test_all_sleep_and_have_short_turns_where_there_are_more_workers_than_cores() -> None:
    num_copies = os.cpu_count() or 1
    found = workers(min(os.sched_getaffinity(0)), *[None] * num_copies)
    assert [turn_ns for *_, turn_ns in found] == [SHORT_NS] * (1 + num_copies)


@needs_two_cores
def test_a_worker_without_a_core_goes_where_the_process_may_whoever_loads_it() -> None:
    found: list[set[int]] = []

    def load() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # of this thread alone
        found.extend(seen(os.sched_getaffinity, None))

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert found == [os.sched_getaffinity(os.getpid())]
