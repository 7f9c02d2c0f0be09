"""`benchmarks ranks`, messages: there and back between two ranks, by the executor and by MPI alone.

All are in one process and take turns. Ours go as in a plan: a core has made something, the other
rank's core waits for it, and the program says so; the loop is that of a request of the program. MPI
alone is the faster of two loops: persistent requests as ours, and MPI_Send with MPI_Recv.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.ranks.launch import find_launcher, module_of, mpi_name, run_ranks
from heteroplace.errors import ExecutionError
from heteroplace.model.cluster import Cluster
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.parts.hosts.machines import hosts_of_cores
from heteroplace.parts.hosts.message_programs import load_on_ranks, round_trip_program
from heteroplace.parts.hosts.mpi import MPI, MpiRanks
from heteroplace.stats import median

SIZES = (8, 4096, 1 << 20, 16 << 20)
NUM_ROUNDS = 25
_TURN_BYTES = 64 << 20
_MAX_TRIPS = 200
_SOURCE = Path(__file__).with_name("raw_messages.c")

Row = dict[str, object]


def message_rows(sizes: Sequence[int], say: Callable[[str], None]) -> Iterator[Row]:
    """Start two ranks that measure messages of each size; yield their rows."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "raw.so")
        _compile(library)
        for size in sizes:
            say(f"messages of {size} B")
            arguments = [str(library), str(size), str(NUM_ROUNDS)]
            found = json.loads(run_ranks(2, module_of(__name__, *arguments)))
            yield {"case": f"message/{size}", "bytes": size, "ranks": 2, **found}


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
        # The first run finds workers asleep.
        return median(self._executor.benchmark(6)[1:].tolist()) / (2 * self._num_trips)


class _Raw:
    """The same by MPI alone, in this process."""

    def __init__(self, library: str, cores: Sequence[int], num_bytes: int, num_trips: int) -> None:
        self._cores = cores
        self._comm = importlib.import_module("mpi4py.MPI").COMM_WORLD.Dup()
        # Written, as pages that nobody has written are one page of zeros.
        self._out, self._in = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)
        self._num_trips = num_trips
        self._call = ctypes.CDLL(library).raw_round_trips_ns
        self._call.restype = ctypes.c_longlong

    def one_way_ns(self, is_blocking: bool) -> float:
        # Of this thread alone: its core is that of the program's worker, which sleeps meanwhile.
        everywhere = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._cores)
        total_ns = self._call(
            ctypes.c_int(self._comm.py2f()),
            self._out.ctypes.data_as(ctypes.c_void_p),
            self._in.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int(self._in.size),
            ctypes.c_int(self._num_trips),
            ctypes.c_int(is_blocking),
        )
        os.sched_setaffinity(0, everywhere)
        return float(total_ns) / (2 * self._num_trips)


def _measure(library: str, num_bytes: int, num_rounds: int) -> Row | None:
    """One rank's part; the first one returns the row."""
    ranks = MPI.launched_ranks()  # `message_rows` starts two
    num_trips = max(2, min(_MAX_TRIPS, _TURN_BYTES // num_bytes))
    cluster = hosts_of_cores(["a", "b"])
    cores = cluster.devices[ranks.rank].cores
    ours = _Ours(cluster, ranks, num_bytes, num_trips)
    raw = _Raw(library, cores, num_bytes, num_trips)
    own_ns: list[float] = []
    persistent_ns: list[float] = []
    blocking_ns: list[float] = []
    for _ in range(num_rounds):
        ranks.gather(None)
        own_ns.append(ours.one_way_ns())
        for times, is_blocking in ((persistent_ns, False), (blocking_ns, True)):
            ranks.gather(None)
            times.append(raw.one_way_ns(is_blocking))
    if ranks.rank != 0:
        return None
    raw_ns = min(persistent_ns, blocking_ns, key=median)
    return {
        "transport": mpi_name(),
        "link": "one machine",
        "ours_us": median(own_ns) / 1e3,
        "raw_us": median(raw_ns) / 1e3,
        # Of the same round: the machine is another one from minute to minute.
        "ratio_to_raw": median([own / bare for own, bare in zip(own_ns, raw_ns, strict=True)]),
    }


if __name__ == "__main__":
    found = _measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    if found is not None:
        print(json.dumps(found))
