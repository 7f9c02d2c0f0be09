"""Files for two hosts that are cores of this machine, and jobs of ranks that run them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tvm
from relay_models import TARGET, extraction_of, fire_modules, random_inputs, solution_of
from tests.programs import environment

import heteroplace as hp
from heteroplace.hetero_place import build
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.relay.annotate.writer import annotate

PROGRAM = Path(sysconfig.get_path("scripts")) / "heteroplace-run"
LIMIT_S = 120


def mpiexec() -> str:
    """The launcher of this environment; the test is skipped where there is none."""
    path = shutil.which("mpiexec", path=sysconfig.get_path("scripts"))
    if path is None:
        pytest.skip("no mpiexec in this environment: pip install mpich")
    return path


def two_hosts(*, same_core: bool = False) -> Cluster:
    """A core of this machine as host a, the next one as host b."""
    cores = sorted(os.sched_getaffinity(0))
    last = cores[0] if same_core or len(cores) == 1 else cores[1]
    memories = (Memory("ram.a", 2**33, "a"), Memory("ram.b", 2**33, "b"))
    devices = (
        Device("cpu.a", "cpu", TARGET, 0, 0, (cores[0],), host="a"),
        Device("cpu.b", "cpu", TARGET, 0, 1, (last,), host="b"),
    )
    links = (Link("ab", 0, 1, 10**9, 20_000, "eth"), Link("ba", 1, 0, 10**9, 20_000, "eth"))
    return Cluster("two", memories, devices, links, 0)


def compiled(folder: Path, cluster: Cluster, devices: Sequence[int] = (0, 1)) -> Path:
    """A network in the manner of SqueezeNet, its tasks dealt out to the devices in turn."""
    mod = fire_modules()
    extraction = extraction_of(mod)
    places = [devices[i % len(devices)] for i in range(len(extraction.graph.tasks))]
    with tvm.transform.PassContext(opt_level=3):
        placed = annotate(extraction, solution_of(extraction, cluster, places))
        build(placed).export_library(folder / "model.so")
    return folder / "model.so"


def values() -> dict[str, np.ndarray]:
    """Inputs of the network."""
    return random_inputs(fire_modules())


def expected(folder: Path) -> list[np.ndarray]:
    """The outputs by one process."""
    cores = sorted(os.sched_getaffinity(0))
    cluster = Cluster(
        "one",
        (Memory("ram", 2**33),),
        (Device("cpu", "cpu", TARGET, 0, 0, (cores[0],)),),
        (),
        0,
    )
    folder.mkdir()
    return hp.load(compiled(folder, cluster, (0,))).run(values())


def job(count: int, *command: object) -> list[str]:
    """The command line of so many ranks."""
    return [mpiexec(), "-n", str(count), *map(str, command)]


def run_job(
    count: int, *command: object, limit_s: float = LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Run a job to its end."""
    return subprocess.run(
        job(count, *command),
        capture_output=True,
        text=True,
        timeout=limit_s,
        env=environment(),
        check=False,
    )


def python(program: str, *arguments: object) -> list[object]:
    """The command line of a Python program."""
    return [sys.executable, "-c", program, *arguments]


@contextmanager
def running(count: int, *command: object) -> Iterator[subprocess.Popen[str]]:
    """A job at work; what is left of it is ended."""
    with subprocess.Popen(
        job(count, *command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            for pid in ranks_of(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.kill()


def ranks_of(pid: int) -> list[int]:
    """The processes below a launcher that are no launchers, lowest first."""
    found = []
    for child in children_of(pid):
        name = Path(f"/proc/{child}/comm").read_text().strip()
        found += ranks_of(child) if name.startswith(("hydra", "mpiexec", "prte")) else [child]
    return sorted(found)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        text = " ".join((thread / "children").read_text() for thread in threads)
    except FileNotFoundError:  # it has ended meanwhile
        return []
    return [int(child) for child in text.split()]


def wait_for_ranks(process: subprocess.Popen[str], count: int, limit_s: float = 30) -> list[int]:
    """The ranks of a job, once they are all there."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        found = ranks_of(process.pid)
        if len(found) == count:
            return found
        time.sleep(0.005)
    raise AssertionError(f"no {count} ranks within {limit_s} s")


def shared_files() -> set[str]:
    """Files of memory that processes share."""
    return {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith("mpich")}
