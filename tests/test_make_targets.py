"""What the targets of the Makefile install: each test that can run has its packages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="this machine has no make")


@pytest.mark.parametrize(
    ("target", "extras"),
    [("gpu", ("gpu", "cublas", "cudnn")), ("test-all", ("bench", "gpu", "gurobi", "torch"))],
)
def test_a_target_installs_the_extras_that_its_tests_need(
    target: str, extras: tuple[str, ...]
) -> None:
    # Whatever is there already: all that would be done from nothing.
    command = ["make", "--dry-run", "--always-make", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert f'"$REQUIREMENTS" {" ".join(extras)} >' in done.stdout
