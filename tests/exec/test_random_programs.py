"""Random programs with buffer reuse over several queues, against numpy in program order."""

from __future__ import annotations

import random

import executor_programs as programs
import numpy as np
import pytest
from executor_programs import make_executor, needs_two_cores, vector, write_program

pytestmark = pytest.mark.timeout(120)

NUM_SLOTS = 5
"""Few, so that most values overwrite one that another queue may still read."""


class Writer:
    """Writes one random program and computes its result in program order."""

    def __init__(self, seed: int, queues: tuple[str, ...]) -> None:
        self.random = random.Random(seed)
        self.queues = queues
        self.lines: list[str] = []
        self.length = [0] * len(queues)
        self.values = [np.zeros(programs.EXTENT, "float32") for _ in range(NUM_SLOTS)]
        self.values += [vector(seed), vector(seed + 1)]
        # Per tensor: (queue, count) of the last write, and of the reads since then.
        self.written: dict[int, tuple[int, int]] = {}
        self.read: dict[int, list[tuple[int, int]]] = {}

    def waits(self, queue: int, sources: list[int], target: int) -> str:
        """Waits for the writers of the sources, and for all users of the target's old value."""
        before = [self.written[t] for t in [*sources, target] if t in self.written]
        before += self.read.get(target, [])
        latest: dict[int, int] = {}
        for other, count in before:
            if other != queue:
                latest[other] = max(latest.get(other, 0), count)
        return ",".join(f"{q}:{n}" for q, n in sorted(latest.items())) or "-"

    def step(self, number: int) -> None:
        """Append one random instruction, or a team of two."""
        queue = self.random.randrange(len(self.queues))
        target = self.random.randrange(NUM_SLOTS)
        kind = self.random.choice(["add", "twice", "copy", "team"])
        cores = [q for q, name in enumerate(self.queues) if name == "cpu"]
        if kind == "team" and len(cores) < 2:
            kind = "twice"
        choices = [t for t in range(NUM_SLOTS + 2) if t != target]
        sources = [self.random.choice(choices) for _ in range(2 if kind == "add" else 1)]
        if kind == "team":
            queue = self.random.choice(cores)
        self.emit(kind, number, queue, target, sources)

    def emit(self, kind: str, number: int, queue: int, target: int, sources: list[int]) -> None:
        """Append one instruction, and what it does to the values."""
        if kind == "team":
            helper = self.random.choice(
                [q for q, name in enumerate(self.queues) if name == "cpu" and q != queue]
            )
            self.lines.append(f"join {helper} {number} {queue} {self.length[queue]} -")
            self.length[helper] += 1
        waits = self.waits(queue, sources, target)
        names = ",".join(map(str, [*sources, target]))
        threads = 2 if kind == "team" else 1
        if kind == "add":
            self.lines.append(f"call {queue} {number} 0 1 {names} {waits}")
            value = self.values[sources[0]] + self.values[sources[1]]
        elif kind == "copy":
            self.lines.append(f"copy {queue} {number} {names.replace(',', ' ')} {waits}")
            value = self.values[sources[0]]
        else:
            self.lines.append(f"call {queue} {number} 1 {threads} {names} {waits}")
            value = self.values[sources[0]] * np.float32(2) + np.float32(1)
        self.values[target] = value
        self.length[queue] += 1
        now = (queue, self.length[queue])
        self.written[target] = now
        self.read[target] = []
        for source in sources:
            self.read.setdefault(source, []).append(now)

    def text(self, num_steps: int) -> str:
        """The whole program. Every slot is written first: it holds the last run's value."""
        for slot in range(NUM_SLOTS):
            self.emit("copy", slot, self.random.randrange(len(self.queues)), slot, [NUM_SLOTS])
        for number in range(NUM_SLOTS, num_steps):
            self.step(number)
        return write_program(
            self.queues,
            self.lines,
            num_slots=NUM_SLOTS,
            num_inputs=2,
            outputs=tuple(range(NUM_SLOTS)),
        )


def check(library: str, seed: int, queues: tuple[str, ...], num_steps: int, runs: int) -> None:
    """Run one random program several times and compare every slot; every other one with help."""
    writer = Writer(seed, queues)
    text = writer.text(num_steps)
    executor = make_executor(library, text, helping=seed % 2 == 0)
    executor.set_input("x0", vector(seed))
    executor.set_input("x1", vector(seed + 1))
    for run in range(runs):
        executor.run() if run % 2 else executor.run_timed()
        for slot in range(NUM_SLOTS):
            np.testing.assert_array_equal(
                executor.get_output(f"y{slot}"),
                writer.values[slot],
                err_msg=f"slot {slot}, run {run} of\n{text}",
            )


@pytest.mark.parametrize("num_queues", range(1, 9))
def test_fake_queues_equal_program_order(library: str, num_queues: int) -> None:
    for seed in range(4):
        queues = tuple(f"fake:{(seed + q) % 3 * 15000}" for q in range(num_queues))
        check(library, 100 * num_queues + seed, queues, num_steps=40, runs=3)


@needs_two_cores
@pytest.mark.parametrize("seed", range(30))
def test_two_cores_equal_program_order(library: str, seed: int) -> None:
    check(library, seed, ("cpu", "cpu"), num_steps=60, runs=20)


@needs_two_cores
@pytest.mark.parametrize("seed", range(8))
def test_cores_and_streams_equal_program_order(library: str, seed: int) -> None:
    queues = ("cpu", "cpu", "fake:5000", "fake:20000")
    check(library, seed, queues, num_steps=60, runs=4)
