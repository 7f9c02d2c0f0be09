"""One rank of `benchmarks ranks`: runs the programs in a folder in turns with all other ranks.

Programs of several hosts are run by all ranks, each the part of its host, as often as each other;
a program of one process is run by the first rank while the others sleep.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ranks.launch import mpi_name
from benchmarks.ranks.shaped import sent_bytes
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.native.transports import Transport
from heteroplace.parts.hosts.mpi import MPI
from heteroplace.run.transport import Ranks
from heteroplace.tvm_bridge import library_path

JOB, RESULT, OUTPUTS = "job.json", "result.json", "outputs.npz"
LIBRARY, WEIGHTS, INPUTS = "kernels.so", "weights.npy", "inputs.npz"
_MAX_RUNS = 50
_LONG_NS = 200_000_000
"""A run of this length needs none before it that warms up."""


@dataclass(frozen=True)
class Job:
    """What to run; the files are beside it."""

    programs: tuple[tuple[str, bool], ...]
    """File and whether one process runs it."""
    num_rounds: int
    turn_ns: int
    is_shaped: bool
    """Count what goes over the links."""

    def write(self, folder: Path) -> None:
        """Write it where the ranks find it."""
        Path(folder, JOB).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Job:
        """Read what `write` wrote."""
        found = json.loads(Path(folder, JOB).read_text())
        return cls(**{**found, "programs": tuple(map(tuple, found["programs"]))})


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name to an `.npz` file."""
    named: dict[str, Any] = dict(arrays)
    np.savez(path, **named)


class _Entry:
    """One program, on this rank."""

    def __init__(self, folder: Path, file: str, is_alone: bool, ranks: Ranks) -> None:
        self.file = file
        self.executor: NativeExecutor | None = None
        if not is_alone:
            self._load(folder, ranks.transport())
        elif ranks.rank == 0:
            self._load(folder, None)

    def _load(self, folder: Path, transport: Transport | None) -> None:
        text = Path(folder, self.file).read_text()
        # One copy of the weights, which all processes of the machine share.
        blob = np.load(Path(folder, WEIGHTS), mmap_mode="r")
        self.executor = NativeExecutor(
            str(library_path()),
            str(Path(folder, LIBRARY)),
            text,
            blob=blob,
            helping=False,
            transport=transport,
        )

    def benchmark(self, num_runs: int) -> list[int]:
        """Ns of each run; nothing where this rank has no part."""
        return [] if self.executor is None else self.executor.benchmark(num_runs).tolist()


def _run(folder: Path, ranks: Ranks) -> None:
    job = Job.read(folder)
    entries = [_Entry(folder, file, is_alone, ranks) for file, is_alone in job.programs]
    with np.load(Path(folder, INPUTS)) as found:
        inputs = dict(found)
    outputs = {entry.file: _first_run(entry, inputs, ranks) for entry in entries}
    sent = {entry.file: _sent_bytes(entry, ranks, job.is_shaped) for entry in entries}
    num_runs = {entry.file: _runs_of_turn(entry, ranks, job.turn_ns) for entry in entries}
    times: dict[str, list[list[int]]] = {entry.file: [] for entry in entries}
    for _ in range(job.num_rounds):
        for entry in entries:
            ranks.gather(None)
            found_ns = entry.benchmark(num_runs[entry.file])
            times[entry.file].append(found_ns[1:] or found_ns)
    ranks.gather(None)
    if ranks.rank == 0:
        result = {"transport": mpi_name(), "times_ns": times, "sent_bytes": sent}
        Path(folder, RESULT).write_text(json.dumps(result))
        arrays = {f"{file}/{name}": array for file, each in outputs.items() for name, array in each}
        save_arrays(Path(folder, OUTPUTS), arrays)


def _first_run(
    entry: _Entry, inputs: Mapping[str, np.ndarray], ranks: Ranks
) -> list[tuple[str, np.ndarray]]:
    """Set the inputs and run once; the outputs by name, where this rank has them."""
    ranks.gather(None)
    executor = entry.executor
    if executor is None:
        return []
    for port in executor.inputs:
        executor.set_input(port.name, inputs[port.name])
    executor.run()
    return [(port.name, executor.get_output(port.name)) for port in executor.outputs]


def _sent_bytes(entry: _Entry, ranks: Ranks, is_shaped: bool) -> int | None:
    """What all interfaces send in one run; None: the links are not ours."""
    if not is_shaped:
        return None
    before = ranks.gather(sent_bytes())
    entry.benchmark(1)
    after = ranks.gather(sent_bytes())
    return sum(after) - sum(before)


def _runs_of_turn(entry: _Entry, ranks: Ranks, turn_ns: int) -> int:
    """How many runs a turn has; of several, the first one does not count."""
    ranks.gather(None)
    found = ranks.gather(entry.benchmark(2))[0]
    if found[-1] > _LONG_NS:
        return 1
    return 1 + max(1, min(_MAX_RUNS, turn_ns // found[-1]))


if __name__ == "__main__":
    _run(Path(sys.argv[1]), MPI.launched_ranks())  # `plans.py` starts several
