"""Ranks that are killed, stopped or given wrong files: the job ends with a line that names them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
from contextlib import nullcontext
from pathlib import Path
from random import Random

import numpy as np
import pytest
from rank_jobs import (
    END_S,
    PROGRAM,
    compiled,
    named_memory,
    python,
    run_job,
    run_to_codes,
    running,
    stopped_launchers,
    two_hosts,
    values,
    wait_for_end,
    wait_for_ranks,
)

pytestmark = pytest.mark.relay
ENDLESS = ("--repeat", "100000000")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("failures")
    np.save(folder / "x.npy", values())
    return compiled(folder / "model.so", two_hosts())


def strike(
    model: Path, how: signal.Signals, victim: int, delay_s: float, *options: str, alone: bool = True
) -> list[str]:
    """Send a signal to a rank so long after all have met; return our lines on the terminal.

    alone: the launcher, which ends all ranks when it sees that one has died, is halted until the
        survivor has ended by itself.
    """
    inputs = ["--input", f"x={model.parent / 'x.npy'}"]
    with running(2, PROGRAM, model, *inputs, *ENDLESS, *options) as job:
        ranks = wait_for_ranks(job, 2)
        time.sleep(delay_s)
        left_behind = named_memory(ranks)
        with stopped_launchers(job.pid) if alone else nullcontext():
            os.kill(ranks[victim], how)
            if alone:
                wait_for_end(ranks[1 - victim])
        output, errors = job.communicate(timeout=END_S)
        assert job.returncode != 0
    assert not [rank for rank in ranks if Path(f"/proc/{rank}").exists()]
    assert not left_behind
    lines = [line for line in (errors + output).splitlines() if line.startswith("heteroplace-run")]
    assert len(lines) <= 1, (output, errors)
    return lines


def check_kills(model: Path, seed: int) -> None:
    """Kill one rank at a random moment in load or run."""
    random = Random(seed)
    # Just met, MPI may not have taken the name off its own memory yet.
    victim, delay_s = random.randrange(2), 0.1 + random.choice((0.1, 0.5)) * random.random()
    (line,) = strike(model, signal.SIGKILL, victim, delay_s)
    assert line.startswith(f"heteroplace-run: rank {victim} (")
    assert ") died: its process " in line
    assert "last finished step: " in line


def test_a_launcher_may_be_first(model: Path) -> None:
    for line in strike(model, signal.SIGKILL, 1, 0.1, alone=False):
        assert line.startswith("heteroplace-run: rank 1 (")


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_rank_ends_the_job_with_its_name(model: Path, seed: int) -> None:
    check_kills(model, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 52))
def test_fifty_killed_ranks(model: Path, seed: int) -> None:
    check_kills(model, seed)
    done = run_job(2, PROGRAM, model, "--input", f"x={model.parent / 'x.npy'}")
    assert (done.returncode, done.stderr) == (0, "")  # the next job starts at once


def test_a_stopped_rank_ends_the_job_by_the_timeout(model: Path) -> None:
    (line,) = strike(model, signal.SIGSTOP, 1, 0.2, "--timeout", "1")
    assert line.startswith("heteroplace-run: rank 1 (")
    assert ") does not answer: nothing was heard of it for " in line


HANGING_MPI = """
#include <unistd.h>
int PMPI_Test(void *request, int *flag, void *status);
int MPI_Test(void *request, int *flag, void *status) {
  while (access("SIGN", F_OK) == 0) usleep(1000);
  return PMPI_Test(request, flag, status);
}
"""


@pytest.mark.costly
def test_a_job_ends_though_mpi_never_returns(model: Path, tmp_path: Path) -> None:
    """As where a rank died while it wrote to memory that MPICH shares between ranks."""
    sign, library = tmp_path / "sign", tmp_path / "libmpi.so"
    folder = Path(sysconfig.get_path("data")) / "lib"
    if not (folder / "libmpi.so.12").exists():
        pytest.skip("no MPICH in this environment: pip install mpich")
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", f"-L{folder}", f"-Wl,-rpath,{folder}"]
    text = HANGING_MPI.replace("SIGN", str(sign))
    subprocess.run([*command, "-l:libmpi.so.12", "-o", library], input=text, text=True, check=True)
    inputs = ("--input", f"x={model.parent / 'x.npy'}", "--mpi", library)
    with running(2, PROGRAM, model, *inputs, *ENDLESS) as job:
        ranks = wait_for_ranks(job, 2)
        sign.touch()
        time.sleep(0.3)
        with stopped_launchers(job.pid):
            os.kill(ranks[0], signal.SIGKILL)
            wait_for_end(ranks[1])
        _, errors = job.communicate(timeout=END_S)
    (line,) = [line for line in errors.splitlines() if line.startswith("heteroplace-run")]
    assert line.startswith("heteroplace-run: rank 0 (")
    assert ") died: its process " in line


SURVIVOR = """
import os, sys
import heteroplace, numpy as np
from heteroplace.errors import ExecutionError
executor = heteroplace.load(sys.argv[1])
try:
    while executor.is_feeding:
        executor.run(x=np.load(sys.argv[2]))
    executor.serve()
except ExecutionError as err:
    print("survivor:", err, flush=True)
    os._exit(1)  # not MPI's end, which waits for the launcher
"""


@pytest.mark.slow
@pytest.mark.parametrize("victim", range(2))
def test_a_survivor_in_python_raises_what_the_terminal_says(model: Path, victim: int) -> None:
    pytest.importorskip("mpi4py")
    with running(2, *python(SURVIVOR, model, model.parent / "x.npy")) as job:
        ranks = wait_for_ranks(job, 2)
        time.sleep(0.5)
        with stopped_launchers(job.pid):
            os.kill(ranks[victim], signal.SIGKILL)
            wait_for_end(ranks[1 - victim])
        output, errors = job.communicate(timeout=END_S)
    (line,) = [line for line in errors.splitlines() if line.startswith("heteroplace: ")]
    assert line.startswith(f"heteroplace: rank {victim} (host ")
    said = [line for line in output.splitlines() if line.startswith("survivor: ")]
    assert said == [f"survivor: {line.removeprefix('heteroplace: ')}"]


@pytest.mark.parametrize("fault", ["type", "missing", "folder"])
def test_a_wrong_input_of_the_feeding_rank_ends_all_with_a_code(
    model: Path, tmp_path: Path, fault: str
) -> None:
    np.save(tmp_path / "x.npy", values().astype("int32"))
    options: list[object] = {
        "type": ["--input", f"x={tmp_path / 'x.npy'}"],
        "missing": [],
        "folder": ["--input", f"x={model.parent / 'x.npy'}", "--output", "output0=/nowhere/y.npy"],
    }[fault]
    done, codes = run_to_codes(tmp_path, PROGRAM, model, *options)
    lines = (done.stderr + done.stdout).splitlines()
    (line,) = [line for line in lines if line.startswith("heteroplace-run: ")]
    assert line.startswith("heteroplace-run: rank 0 (host 'a' on ")
    assert {"type": "got int32", "missing": "is missing", "folder": "/nowhere/y.npy"}[fault] in line
    assert codes == [4, 6]


@pytest.mark.costly(6)
def test_a_wrong_input_of_the_command_run_ends_all_with_a_code(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    np.save(tmp_path / "x.npy", values()[:1])
    command = [sys.executable, "-m", "heteroplace.cli.main", "run", model]
    done, codes = run_to_codes(tmp_path, *command, "--input", f"x={tmp_path / 'x.npy'}")
    assert all(codes), codes
    assert done.stderr.count("heteroplace: rank 0 (host 'a' on ") == 1
