"""Kernels in the user's cache: what is found is what was kept, and nothing wrong is ever found."""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path

import pytest

from heteroplace.cli.models import kernel_cache
from heteroplace.cli.models.kernel_cache import KernelCache, kernel_file

KERNELS = {bytes([number]): bytes([number]) * 1000 for number in range(8)}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETEROPLACE_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(kernel_cache, "programs_digest", lambda: "these")


def _num_kept() -> int:
    with sqlite3.connect(kernel_file()) as file:
        (count,) = file.execute("SELECT COUNT(*) FROM kernels").fetchone()
    return int(count)


def test_what_is_kept_is_found_by_another_process() -> None:
    assert KernelCache().find(list(KERNELS)) == {}
    KernelCache().add(KERNELS)
    assert KernelCache().find([*KERNELS, b"other"]) == KERNELS


def test_other_programs_make_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    KernelCache().add(KERNELS)
    monkeypatch.setattr(kernel_cache, "programs_digest", lambda: "later ones")
    assert KernelCache().find(list(KERNELS)) == {}


def test_what_is_damaged_is_not_found(caplog: pytest.LogCaptureFixture) -> None:
    KernelCache().add(KERNELS)
    with sqlite3.connect(kernel_file()) as file:
        file.execute("UPDATE kernels SET content = ? WHERE content = ?", [b"wrong", KERNELS[b"\3"]])
    expected = {key: content for key, content in KERNELS.items() if key != b"\3"}
    assert KernelCache().find(list(KERNELS)) == expected
    KernelCache().add(KERNELS)
    assert KernelCache().find(list(KERNELS)) == KERNELS
    assert not caplog.records


def test_what_was_not_used_for_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr(kernel_cache.time, "time", lambda: float(next(now)))
    cache = KernelCache(max_bytes=3500)
    for key, content in list(KERNELS.items())[:3]:
        cache.add({key: content})
    assert len(cache.find([b"\0"])) == 1  # now the one that was used last
    cache.add({b"\5": KERNELS[b"\5"]})
    assert sorted(cache.find(list(KERNELS))) == [b"\0", b"\2", b"\5"]
    assert _num_kept() == 3


def test_several_processes_keep_theirs() -> None:
    threads = [
        threading.Thread(target=KernelCache().add, args=({key: content},))
        for key, content in KERNELS.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert KernelCache().find(list(KERNELS)) == KERNELS


def test_a_file_that_is_none_of_ours_is_named_and_left(caplog: pytest.LogCaptureFixture) -> None:
    kernel_file().parent.mkdir()
    kernel_file().write_text("no database" * 1000)
    KernelCache().add(KERNELS)
    assert KernelCache().find(list(KERNELS)) == {}
    assert f"{kernel_file()}: file is not a database; remove it" in caplog.text
    assert kernel_file().read_text().startswith("no database")


def test_a_folder_that_cannot_be_made_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HETEROPLACE_MODELS", str(tmp_path / "file" / "models"))
    with caplog.at_level(logging.INFO):
        KernelCache().add(KERNELS)
        assert KernelCache().find(list(KERNELS)) == {}
    assert {record.levelname for record in caplog.records} == {"INFO"}
    assert "kernels are not kept: [Errno" in caplog.text


def test_a_user_without_a_home_has_no_cache(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("HETEROPLACE_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    with caplog.at_level(logging.INFO):
        assert KernelCache().find(list(KERNELS)) == {}
    assert "there is no cache folder" in caplog.text
