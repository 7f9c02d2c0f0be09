"""What the README says can be done: its program runs as it stands, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.mark.relay
def test_program_of_the_readme_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "lower bound" in done.stdout
    assert done.stdout.strip().endswith("ms measured")
    assert (tmp_path / "model.so").stat().st_size > 0


def test_links_of_the_readme_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert links
    missing = [link for link in links if not (README.parent / link).exists()]
    assert not missing
