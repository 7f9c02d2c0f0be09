"""Every tutorial runs from start to end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import measured_shortly

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = sorted((ROOT / "tutorials").glob("*.py"))
# What these do is in other tests, step by step, and each takes more than ten seconds.
SLOW = {
    "02_two_hosts",
    "08_pinning",
    "09_requests_in_flight",
    "10_own_cost_model",
    "12_without_python",
    "13_sharded_transformer",
    "14_from_torch",
    "16_generate_text",
}


def test_there_are_tutorials() -> None:
    assert {path.stem for path in TUTORIALS} >= SLOW


@pytest.mark.costly(70)
@pytest.mark.relay
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.slow if path.stem in SLOW else (), id=path.stem)
        for path in TUTORIALS
    ],
)
def test_tutorial_runs_with_warnings_as_errors(path: Path, tmp_path: Path) -> None:
    flags = ["-W", "error"]
    if "import torch" in path.read_text():
        pytest.importorskip("torch")
        pytest.importorskip("onnxscript")
        flags = []  # torch.export warns of torch's own code
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'python'}:{ROOT}",
        "TMPDIR": str(tmp_path),
    }
    text = measured_shortly(path.read_text().replace("time_limit=5.0", "time_limit=1.0"))
    (tmp_path / path.name).write_text(text)
    done = subprocess.run(
        [sys.executable, *flags, path.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout
