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
from relay_models import TARGET, extraction_of, solution_of
from tvm import relay

from heteroplace.hetero_place import build
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.relay.annotate.writer import annotate
from tests.programs import environment

PROGRAM = Path(sysconfig.get_path("scripts")) / "heteroplace-run"
LIMIT_S = 120
END_S = 20
"""Most seconds from a rank's end to that of the others: only a hang takes as long."""
NUM_STEPS = 4


def mpiexec() -> str:
    """The launcher of this environment; the test is skipped where there is none."""
    path = shutil.which("mpiexec", path=sysconfig.get_path("scripts"))
    if path is None:
        pytest.skip("no mpiexec in this environment: pip install mpich")
    return path


def two_hosts(last: int | None = None) -> Cluster:
    """A core of this machine as host a, the next one, or `last`, as host b."""
    cores = sorted(os.sched_getaffinity(0))
    if last is None:
        last = cores[1 % len(cores)]
    memories = (Memory("ram.a", 2**33, "a"), Memory("ram.b", 2**33, "b"))
    devices = (
        Device("cpu.a", "cpu", TARGET, 0, 0, (cores[0],), host="a"),
        Device("cpu.b", "cpu", TARGET, 0, 1, (last,), host="b"),
    )
    links = (Link("ab", 0, 1, 10**9, 20_000, "eth"), Link("ba", 1, 0, 10**9, 20_000, "eth"))
    return Cluster("two", memories, devices, links, 0)


def weights(step: int) -> np.ndarray:
    """Of one dense layer: small whole numbers."""
    return np.random.default_rng(step).integers(-2, 3, (16, 16)).astype("float32")


def chain() -> tvm.IRModule:
    """Small layers whose values are whole numbers: exact, in whatever order they are computed."""
    x = relay.var("x", shape=(4, 16), dtype="float32")
    value = x
    for step in range(NUM_STEPS):
        value = relay.nn.dense(value, relay.const(weights(step)))
    return relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x], value)))


def chain_of(x: np.ndarray) -> np.ndarray:
    """What the chain computes."""
    for step in range(NUM_STEPS):
        x = x @ weights(step).T
    return x


def compiled(path: Path, cluster: Cluster) -> Path:
    """The chain, its tasks dealt out to the devices in turn."""
    extraction = extraction_of(chain())
    num_devices = len(cluster.devices)
    places = [task % num_devices for task in range(len(extraction.graph.tasks))]
    with tvm.transform.PassContext(opt_level=3):
        placed = annotate(extraction, solution_of(extraction, cluster, places))
        build(placed).export_library(path)
    return path


def values() -> np.ndarray:
    """An input."""
    return np.arange(-8, 56, dtype="float32").reshape(4, 16)


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


def run_to_codes(
    folder: Path, *command: object
) -> tuple[subprocess.CompletedProcess[str], list[int]]:
    """Run a job of two ranks; return it, and the exit code of each."""
    # In a session of its own, as the launcher ends all that it knows with the first one that fails.
    shell = f'"$@"; echo $? > {folder}/part.$PMI_RANK; cd {folder}; mv part.$PMI_RANK $PMI_RANK'
    keeper = ["setsid", "--fork", "--wait", "sh", "-c", shell, "sh"]
    done = run_job(2, *keeper, *command)
    return done, [int(wait_for_file(folder / f"{rank}")) for rank in range(2)]


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


def is_launcher(pid: int) -> bool:
    """Whether a process starts others and waits for them."""
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    return name.startswith(("hydra", "mpiexec", "prte"))


def ranks_of(pid: int) -> list[int]:
    """The processes below a launcher that are no launchers, lowest first."""
    found = []
    for child in children_of(pid):
        found += ranks_of(child) if is_launcher(child) else [child]
    return sorted(found)


@contextmanager
def stopped_launchers(pid: int) -> Iterator[None]:
    """The launchers of a job, halted, so that they end nobody meanwhile."""
    launchers = [pid, *filter(is_launcher, children_of(pid))]
    for launcher in launchers:
        os.kill(launcher, signal.SIGSTOP)
    try:
        yield
    finally:
        for launcher in launchers:
            os.kill(launcher, signal.SIGCONT)


def wait_for_end(pid: int) -> None:
    """Until a process has ended, whether or not its parent has looked."""
    end = time.monotonic() + END_S
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state in "ZX":
            return
        time.sleep(0.002)
    raise AssertionError(f"process {pid} has not ended within {END_S} s")


def wait_for_file(path: Path) -> str:
    """The text of a file, once it is there."""
    end = time.monotonic() + END_S
    while not path.exists():
        assert time.monotonic() < end, f"no {path} within {END_S} s"
        time.sleep(0.002)
    return path.read_text()


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        text = " ".join((thread / "children").read_text() for thread in threads)
    except FileNotFoundError:  # it has ended meanwhile
        return []
    return [int(child) for child in text.split()]


def have_met(ranks: Sequence[int]) -> bool:
    """Whether each of some processes sees the pages of all; before, the launcher alone does."""
    try:
        maps = [Path(f"/proc/{rank}/maps").read_text() for rank in ranks]
    except FileNotFoundError:
        return False
    return all(text.count("heteroplace rank") >= len(ranks) for text in maps)


def wait_for_ranks(process: subprocess.Popen[str], count: int) -> list[int]:
    """The ranks of a job, once they have met."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        found = ranks_of(process.pid)
        if len(found) == count and have_met(found):
            return found
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    raise AssertionError(f"no {count} ranks within {LIMIT_S} s")


def named_memory(ranks: Sequence[int]) -> list[str]:
    """Files of memory that processes share and that would be left behind, as they have names."""
    lines = [line for rank in ranks for line in Path(f"/proc/{rank}/maps").read_text().splitlines()]
    return [line for line in lines if "/dev/shm/" in line and not line.endswith("(deleted)")]
