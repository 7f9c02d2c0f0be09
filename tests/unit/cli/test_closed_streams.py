"""Standard streams that are closed, broken or full, and Python without docstrings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import environment
from tests.published_graphs import DNN, write


@pytest.mark.parametrize(
    ("program", "closed"),
    [
        ("-m heteroplace.cli.main clusters", ">&-"),
        ("-m heteroplace.cli.main clusters --json", "2>&-"),
        ("-m heteroplace.cli.main clusters", "<&- >&- 2>&-"),
        ("-m heteroplace.cli.main clusters", "| true"),
        ("-OO -m heteroplace.cli.main clusters", "| true"),
        ("-m benchmarks -h", ">&-"),
        ("-m benchmarks -h", "| true"),
    ],
)
def test_a_stream_that_is_closed_is_no_error(program: str, closed: str) -> None:
    done = in_shell(f"{sys.executable} {program} {closed}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["2>&-", "2>&1 >&- | true"])
def test_an_error_that_nobody_reads_keeps_its_code(closed: str) -> None:
    done = in_shell(f"{sys.executable} -m heteroplace.cli.main check nothing.json {closed}")
    assert (done.returncode, done.stdout, done.stderr) == (4, "", "")


def test_a_file_is_not_written_to_where_standard_output_was_closed(tmp_path: Path) -> None:
    command = f"place --graph {write(tmp_path, DNN)} --iterations 2000 --plan {tmp_path / 'p.json'}"
    done = in_shell(f"{sys.executable} -m heteroplace.cli.main {command} >&-")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "p.json").read_text())["steps"]


def test_a_standard_output_that_cannot_be_written_is_named() -> None:
    done = in_shell(f"{sys.executable} -m heteroplace.cli.main clusters >/dev/full")
    assert done.returncode == 4
    assert done.stderr.endswith("'standard output'\n") and done.stderr.count("\n") == 1


def in_shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of bash; its exit code is that of the first program of a pipe."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )


def test_errors_are_explained_where_python_strips_docstrings() -> None:
    done = in_shell(f"{sys.executable} -OO -m heteroplace.cli.main doctor HP101")
    assert done.stdout.startswith("HP101 ClusterError: A cluster file or value is wrong")
