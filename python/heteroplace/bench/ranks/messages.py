"""`bench ranks`, messages: there and back between two ranks, by the executor and by MPI alone.

Both are in one process and take turns. Ours go as in a plan: a core has made something, the other
rank's core waits for it, and the program says so; the loop is that of a request of the program.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from heteroplace.bench.ranks.launch import find_launcher, module_of, mpi_name, run_ranks
from heteroplace.errors import ExecutionError
from heteroplace.machine.hosts import hosts_of_cores
from heteroplace.measure.message_programs import load_on_ranks, round_trip_program
from heteroplace.measure.ranks import MpiRanks, job_ranks
from heteroplace.model.cluster import Cluster
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.stats import median

SIZES = (8, 4096, 1 << 20, 16 << 20)
NUM_ROUNDS = 25
_TURN_BYTES = 64 << 20
_MOST_TRIPS = 200
_SOURCE = Path(__file__).with_name("raw_messages.c")

Row = dict[str, object]


def message_rows(sizes: Sequence[int], say: Callable[[str], None]) -> list[Row]:
    """Start two ranks that measure messages of each size; return their rows."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "raw.so")
        _compile(library)
        for size in sizes:
            say(f"messages of {size} B")
            arguments = [str(library), str(size), str(NUM_ROUNDS)]
            found = json.loads(run_ranks(2, module_of(__name__, *arguments)))
            rows.append({"case": f"message/{size}", "bytes": size, "ranks": 2, **found})
    return rows


def _compile(library: Path) -> None:
    compiler = Path(find_launcher()).with_name("mpicc")
    command = [str(compiler), "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as err:
        raise ExecutionError(
            f"there is no {compiler}, which compiles the loop of MPI alone; install the compiler "
            f"wrapper of the MPI that starts the ranks"
        ) from err
    if done.returncode != 0:
        raise ExecutionError(f"{' '.join(command)}: {done.stderr.strip()}")


class _Ours:
    """A program of round trips, run again and again."""

    def __init__(self, cluster: Cluster, ranks: MpiRanks, num_bytes: int, num_trips: int) -> None:
        program = round_trip_program(cluster, num_bytes, num_trips)
        self._executor: NativeExecutor = load_on_ranks(program, cluster, ranks)
        self._num_trips = num_trips

    def one_way_ns(self) -> float:
        # The first of two runs finds workers asleep.
        return float(self._executor.benchmark(2)[1]) / (2 * self._num_trips)


class _Raw:
    """The same by MPI alone, in this process."""

    def __init__(self, library: str, cores: Sequence[int], num_bytes: int, num_trips: int) -> None:
        self._cores = cores
        self._comm = importlib.import_module("mpi4py.MPI").COMM_WORLD.Dup()
        self._data = np.zeros(num_bytes, np.uint8)
        self._num_trips = num_trips
        self._call = ctypes.CDLL(library).raw_round_trips_ns
        self._call.restype = ctypes.c_longlong

    def one_way_ns(self) -> float:
        data = self._data.ctypes.data_as(ctypes.c_void_p)
        size, trips = ctypes.c_int(self._data.size), ctypes.c_int(self._num_trips)
        # Of this thread alone: its core is that of the program's worker, which sleeps meanwhile.
        everywhere = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._cores)
        total_ns = self._call(ctypes.c_int(self._comm.py2f()), data, size, trips)
        os.sched_setaffinity(0, everywhere)
        return float(total_ns) / (2 * self._num_trips)


def _measure(library: str, num_bytes: int, num_rounds: int) -> Row | None:
    """One rank's part; the first one returns the row."""
    ranks = job_ranks()
    assert ranks is not None  # `message_rows` starts two
    num_trips = max(2, min(_MOST_TRIPS, _TURN_BYTES // num_bytes))
    cluster = hosts_of_cores(["a", "b"])
    cores = cluster.devices[ranks.rank].cores
    ours = _Ours(cluster, ranks, num_bytes, num_trips)
    raw = _Raw(library, cores, num_bytes, num_trips)
    times: list[tuple[float, float]] = []
    for _ in range(num_rounds):
        ranks.gather(None)
        own_ns = ours.one_way_ns()
        ranks.gather(None)
        times.append((own_ns, raw.one_way_ns()))
    if ranks.rank != 0:
        return None
    return {
        "transport": mpi_name(),
        "link": "one machine",
        "ours_us": median([own for own, _ in times]) / 1e3,
        "raw_us": median([bare for _, bare in times]) / 1e3,
        # Of the same round: the machine is another one from minute to minute.
        "ratio_to_raw": median([own / bare for own, bare in times]),
    }


if __name__ == "__main__":
    found = _measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    if found is not None:
        print(json.dumps(found))
