"""Every example runs, and is short."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import environment

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MAX_LINES = 20
HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "onnxscript"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_named_and_has_at_most_20_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES
    assert f"examples/{path.name} " in (ROOT / "examples" / "README.md").read_text()


@pytest.mark.costly(21)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path, marks=pytest.mark.relay if "import tvm" in path.read_text() else (), id=path.stem
        )
        for path in EXAMPLES
    ],
)
def test_example_runs_with_warnings_as_errors(path: Path, tmp_path: Path) -> None:
    if "import torch" in path.read_text() and not HAS_TORCH:
        pytest.skip("torch and onnxscript are not installed")
    done = subprocess.run(
        [sys.executable, "-W", "error", path],
        cwd=tmp_path,
        env=environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
