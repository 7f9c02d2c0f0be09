"""What the targets of the Makefile run, and the packages that they install for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="this machine has no make")


def planned_commands(target: str, *options: str) -> str:
    """All commands of a target from nothing, whatever is there already."""
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", target, *options]
    # Where make runs these tests, its own options are not those of this make.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True
    ).stdout


@pytest.mark.parametrize(
    ("target", "extras"),
    [
        ("gpu", ("gpu", "nvrtc", "cublas", "cudnn")),
        ("busy", ("bench",)),
        ("test-all", ("bench", "gpu", "gurobi", "torch")),
    ],
)
def test_a_target_installs_the_extras_that_its_tests_need(
    target: str, extras: tuple[str, ...]
) -> None:
    assert f'"$REQUIREMENTS" {" ".join(extras)} >' in planned_commands(target)


def test_make_test_runs_what_ci_runs_on_all_cores() -> None:
    *_, run = planned_commands("test", "JOBS=7").splitlines()
    assert run.startswith("CI=1 ")
    assert "--since" not in run
    assert planned_commands("test", "SINCE=v0.1").splitlines()[-1].endswith('--since "v0.1"')
    assert "--numprocesses 7 " in run
    assert f"--numprocesses {len(os.sched_getaffinity(0))} " in planned_commands("test")


def test_the_script_of_ci_can_be_run() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
