"""`heteroplace setup-tvm`: says which TVM there is, and what is wrong in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from heteroplace.cli.main import MISSING_PACKAGE, main


@pytest.mark.costly
@pytest.mark.relay
def test_check_says_which_tvm_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tvm.relay")
    assert main(["setup-tvm", "--check"]) == 0
    assert "with Relay" in capsys.readouterr().out


def test_a_source_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "bitblas.whl"
    arguments = ["setup-tvm", "--cache-dir", str(tmp_path), "--source", str(source)]
    assert main(arguments) == MISSING_PACKAGE
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("error: ")
    assert "no such file" in line
