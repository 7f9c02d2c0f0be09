"""Every tutorial runs from start to end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import measured_shortly

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = sorted((ROOT / "tutorials").glob("*.py"))


def test_there_are_tutorials() -> None:
    assert TUTORIALS


@pytest.mark.costly
@pytest.mark.relay
@pytest.mark.parametrize(
    "path",
    [
        # What the second does is in `tests/relay/test_ranks.py` and others, step by step.
        pytest.param(path, marks=pytest.mark.slow if "hosts" in path.stem else (), id=path.stem)
        for path in TUTORIALS
    ],
)
def test_tutorial_runs_with_warnings_as_errors(path: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "TMPDIR": str(tmp_path)}
    text = measured_shortly(path.read_text().replace("time_limit=5.0", "time_limit=1.0"))
    (tmp_path / path.name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-W", "error", path.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout
