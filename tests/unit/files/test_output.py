"""output: files are replaced as a whole; links, devices, pipes and streams stay what they are."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from heteroplace.cli.shared import check_writable, print_json
from heteroplace.errors import HeteroPlaceError
from heteroplace.files.output import (
    final_path,
    is_replaceable,
    json_text,
    put_in_place,
    write_text,
)
from heteroplace.files.reader import parse_json
from tests.programs import environment


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_is_replaced_and_not_written_over(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    target.write_text("old")
    with target.open() as reader:
        write_text("new", target)
        assert reader.read() == "old"
    assert target.read_text() == "new"
    assert names(tmp_path) == {"plan.json"}


def test_numbers_that_json_does_not_have_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a": [1.5, float("nan"), (float("inf"), 2)], "b": {"c": -float("inf")}, "d": "NaN"}
    expected = {"a": [1.5, None, [None, 2]], "b": {"c": None}, "d": "NaN"}
    assert parse_json(json_text(value, separators=(",", ":"))) == expected
    print_json(value)
    assert parse_json(capsys.readouterr().out) == expected


def test_writers_of_one_file_in_one_process_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "plan.json"
    replace, seen = Path.replace, []

    def while_another_writes(part: Path, path: Path) -> Path:
        """Replace, after a second writer has begun and ended."""
        seen.append(part)
        if len(seen) == 1:
            write_text("second", path)
        return replace(part, path)

    monkeypatch.setattr(Path, "replace", while_another_writes)
    write_text("first", target)
    assert target.read_text() == "first"
    assert len(set(seen)) == 2
    assert names(tmp_path) == {"plan.json"}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_who_may_read_a_file_stays_when_it_is_replaced(tmp_path: Path, mode: int) -> None:
    plan, model = tmp_path / "plan.json", tmp_path / "model.so"
    for path in (plan, model):
        path.write_text("old")
        path.chmod(mode)
    write_text("new", plan)
    part = tmp_path / "part"
    part.write_text("new")
    put_in_place(part, model)
    for path in (plan, model):
        assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", mode)


def test_a_new_file_may_be_read_by_whom_the_mask_lets(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text("new", tmp_path / "plan.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "plan.json").stat().st_mode) == 0o640


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_a_link(tmp_path: Path, exists: bool) -> None:
    (tmp_path / "deep").mkdir()
    if exists:
        (tmp_path / "deep" / "real.json").write_text("old")
    (tmp_path / "middle").symlink_to("deep/real.json")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "middle")
    check_writable(link)
    write_text("new", link)
    assert link.is_symlink() and (tmp_path / "middle").is_symlink()
    assert (tmp_path / "deep" / "real.json").read_text() == "new"
    assert names(tmp_path / "deep") == {"real.json"}


def test_links_in_a_circle_are_told(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="circle"):
        write_text("new", tmp_path / "a")


def test_a_link_into_no_folder_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("none/plan.json")
    with pytest.raises(HeteroPlaceError, match="whose folder does not exist"):
        check_writable(tmp_path / "link")


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    for path in (Path("/dev/null"), link):
        check_writable(path)
        write_text("nothing", path)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert link.is_symlink()
    part = tmp_path / "part"
    part.write_bytes(b"library")
    put_in_place(part, link)
    assert link.is_symlink() and final_path(link) == link and not is_replaceable(link)


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    text = "plan" * 50_000  # More than a pipe holds.
    write_text(text, pipe)
    reader.join()
    assert read == [text]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("is_file", [True, False])
def test_standard_output_is_written_after_what_was_printed(tmp_path: Path, is_file: bool) -> None:
    program = (
        "from heteroplace.files.output import write_text\n"
        "print('before')\n"
        "write_text('plan\\n', '/dev/stdout')\n"
        "print('after')\n"
    )
    path = tmp_path / "out.txt"
    with path.open("w") as file:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdout=file if is_file else subprocess.PIPE,
            check=True,
            env=environment(),
        )
    found = path.read_bytes() if is_file else done.stdout
    assert found == b"before\nplan\nafter\n"


def test_a_finished_file_is_moved_to_where_a_link_leads(tmp_path: Path) -> None:
    part, link = tmp_path / "part", tmp_path / "model.so"
    part.write_bytes(b"new")
    link.symlink_to("real.so")
    put_in_place(part, link)
    assert link.is_symlink() and (tmp_path / "real.so").read_bytes() == b"new"
    assert not part.exists()
