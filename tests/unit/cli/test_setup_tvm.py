"""`heteroplace setup-tvm`: says which TVM there is, and what is wrong in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from heteroplace.cli.main import MISSING_PACKAGE, main


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


def test_a_user_without_a_home_gives_a_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)  # of no entry in /etc/passwd
    assert main(["setup-tvm"]) == MISSING_PACKAGE
    assert "Give --cache-dir FOLDER" in capsys.readouterr().err
