"""Kernels in the user's cache: what is found is what was kept, and nothing wrong is ever found."""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path

import pytest

from heteroplace.cli.models import kernel_cache
from heteroplace.cli.models.kernel_cache import KernelCache, kernel_file

KERNELS = {f"kernel{number}": bytes([number]) * 1000 for number in range(8)}
OPTIONS = "opt_level=3"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETEROPLACE_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(kernel_cache, "programs_digest", lambda: "these")


def _num_kept() -> int:
    with sqlite3.connect(kernel_file()) as file:
        (count,) = file.execute("SELECT COUNT(*) FROM kernels").fetchone()
    return int(count)


def test_what_is_kept_is_found_by_another_process() -> None:
    assert KernelCache().find(KERNELS, OPTIONS) == {}
    KernelCache().add(KERNELS, OPTIONS)
    assert KernelCache().find([*KERNELS, "other"], OPTIONS) == KERNELS


def test_other_programs_make_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    KernelCache().add(KERNELS, OPTIONS)
    monkeypatch.setattr(kernel_cache, "programs_digest", lambda: "later ones")
    assert KernelCache().find(KERNELS, OPTIONS) == {}


def test_other_options_make_other_kernels() -> None:
    KernelCache().add(KERNELS, OPTIONS)
    assert KernelCache().find(KERNELS, "opt_level=2") == {}


def test_what_is_damaged_is_not_found(caplog: pytest.LogCaptureFixture) -> None:
    KernelCache().add(KERNELS, OPTIONS)
    with sqlite3.connect(kernel_file()) as file:
        file.execute(
            "UPDATE kernels SET content = ? WHERE content = ?", [b"wrong", KERNELS["kernel3"]]
        )
    expected = {key: content for key, content in KERNELS.items() if key != "kernel3"}
    assert KernelCache().find(KERNELS, OPTIONS) == expected
    KernelCache().add(KERNELS, OPTIONS)
    assert KernelCache().find(KERNELS, OPTIONS) == KERNELS
    assert not caplog.records


def test_what_was_not_used_for_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr(kernel_cache.time, "time", lambda: float(next(now)))
    cache = KernelCache(max_bytes=3500)
    for key, content in list(KERNELS.items())[:3]:
        cache.add({key: content}, OPTIONS)
    assert len(cache.find(["kernel0"], OPTIONS)) == 1  # now the one that was used last
    cache.add({"kernel5": KERNELS["kernel5"]}, OPTIONS)
    assert sorted(cache.find(KERNELS, OPTIONS)) == ["kernel0", "kernel2", "kernel5"]
    assert _num_kept() == 3


def test_several_writers_at_a_time_keep_theirs() -> None:
    threads = [
        threading.Thread(target=KernelCache().add, args=({key: content}, OPTIONS))
        for key, content in KERNELS.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert KernelCache().find(KERNELS, OPTIONS) == KERNELS


def test_a_file_that_is_none_of_ours_is_named_and_left(caplog: pytest.LogCaptureFixture) -> None:
    kernel_file().parent.mkdir()
    kernel_file().write_text("no database" * 1000)
    KernelCache().add(KERNELS, OPTIONS)
    assert KernelCache().find(KERNELS, OPTIONS) == {}
    assert f"{kernel_file()}: file is not a database; remove it" in caplog.text
    assert kernel_file().read_text().startswith("no database")


def test_a_folder_that_cannot_be_made_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HETEROPLACE_MODELS", str(tmp_path / "file" / "models"))
    with caplog.at_level(logging.INFO):
        KernelCache().add(KERNELS, OPTIONS)
        assert KernelCache().find(KERNELS, OPTIONS) == {}
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
        assert KernelCache().find(KERNELS, OPTIONS) == {}
    assert "there is no cache folder" in caplog.text
