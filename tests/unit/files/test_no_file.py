"""What stands where a file is expected is named."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from heteroplace.cli.main import main
from heteroplace.files.no_file import why_no_file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    Path("link").symlink_to("gone")
    Path("net.onnx").touch()
    return tmp_path


@pytest.mark.parts
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("folder", "is a folder"),
        ("pipe", "is a named pipe (FIFO)"),
        ("socket", "is a socket"),
        ("/dev/null", "is a device"),
        ("link", "is a link to gone, which is not there"),
        ("net.onnx/x", "a part of its path is no folder"),
        ("net.onx", 'there is no such file; did you mean "net.onnx"?'),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_path_that_is_no_file_says_what_it_is(
    folder: Path, path: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    local = ["--cluster", "local"]
    for command in (["run"], ["compile"], ["place", *local], ["profile", *local], ["tune", *local]):
        assert main([*command, path]) == 4
        said = capsys.readouterr().err
        assert says in said
        assert path == "net.onx" or "did you mean" not in said
    assert says in why_no_file(path)


def test_the_only_model_of_a_folder_is_suggested(folder: Path) -> None:
    Path("net.onnx").rename("folder/net.onnx")
    assert why_no_file("folder") == "is a folder; did you mean folder/net.onnx?"
