"""The cache of compiled models: what is found again, and what is not."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import heteroplace
from heteroplace.cli.models import model_cache
from heteroplace.cli.models.model_cache import (
    CACHE_VARIABLE,
    MODEL,
    About,
    NewEntry,
    cache_folder,
    digest_of,
    look_up,
    programs_digest,
    settings_digest,
)
from heteroplace.errors import ArtifactError, FrontendError, HeteroPlaceError
from heteroplace.files.reader import read_json
from tests.instances import cpu
from tests.programs import environment

RANGES = {"x": (0.0, math.inf), "y": (-math.inf, -1.0), "z": (-math.inf, math.inf)}
ABOUT = About(RANGES, 2.5, ("For batch 1.",))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an empty cache, and a model with external weights in weights.bin."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "m.onnx").write_bytes(b"model")
    (tmp_path / "weights.bin").write_bytes(b"1")
    return tmp_path


def compile_as(text: str, folder: Path, settings: str = "s") -> Path:
    """Put a compiled model into the cache."""
    model = folder / "m.onnx"
    weights = digest_of(folder / "weights.bin")
    with NewEntry() as entry:
        entry.write(lambda path: path.write_text(text) and None)
        return entry.keep(settings, {MODEL: digest_of(model), "weights.bin": weights}, ABOUT)


def test_a_compiled_model_is_found_again(folder: Path) -> None:
    model = folder / "m.onnx"
    assert look_up(model, "s") is None
    path = compile_as("code", folder)
    assert look_up(model, "s") == (path, ABOUT)
    assert look_up(model, "other settings") is None
    assert compile_as("newer", folder) == path
    assert path.read_text() == "newer"
    assert read_json(path.parent / "about.json", HeteroPlaceError)["seconds"] == 2.5


def test_external_weights_count_by_content(folder: Path) -> None:
    """Of one size and one date, in the same place or next to a copy of the model."""
    model, weights = folder / "m.onnx", folder / "weights.bin"
    stamp = weights.stat()
    first = compile_as("code of 1", folder)
    weights.write_bytes(b"2")
    os.utime(weights, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert look_up(model, "s") is None
    second = compile_as("code of 2", folder)
    assert look_up(model, "s") == (second, ABOUT)
    weights.write_bytes(b"1")
    assert look_up(model, "s") == (first, ABOUT)
    copy = folder / "copy"
    copy.mkdir()
    (copy / "m.onnx").write_bytes(b"model")
    assert look_up(copy / "m.onnx", "s") is None
    (copy / "weights.bin").write_bytes(b"2")
    assert look_up(copy / "m.onnx", "s") == (second, ABOUT)


def test_the_model_counts_by_content(folder: Path) -> None:
    model = folder / "m.onnx"
    compile_as("code", folder)
    stamp = model.stat()
    model.write_bytes(b"other")
    os.utime(model, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert look_up(model, "s") is None
    with pytest.raises(FrontendError, match="cannot be read"):
        look_up(folder / "lost.onnx", "s")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"legal": 3, "seconds": 1}'])
def test_a_damaged_entry_is_no_entry(folder: Path, text: str) -> None:
    path = compile_as("code", folder)
    (path.parent / "about.json").write_text(text)
    assert look_up(folder / "m.onnx", "s") is None


@pytest.mark.parametrize("text", ["", "3", "{}", "[3]", '["lost.bin"]'])
def test_a_damaged_list_of_external_files_hides_the_entry(folder: Path, text: str) -> None:
    compile_as("code", folder)
    (listing,) = cache_folder().glob("*.json")
    assert json.loads(listing.read_text()) == ["weights.bin"]
    listing.write_text(text)
    assert look_up(folder / "m.onnx", "s") is None


def test_a_failed_compilation_leaves_nothing(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), NewEntry():
        raise KeyboardInterrupt
    assert list(cache_folder().iterdir()) == []


def test_settings_cover_cluster_options_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOPHUB_LOCATION", raising=False)
    digests = [
        settings_digest(cpu(), {"seed": 1}),
        settings_digest(replace(cpu(), name="other"), {"seed": 1}),
        settings_digest(cpu(), {"seed": 2}),
    ]
    monkeypatch.setenv("TOPHUB_LOCATION", "NONE")  # as `require_tvm` sets it
    assert settings_digest(cpu(), {"seed": 1}) == digests[0]
    monkeypatch.setenv("TOPHUB_LOCATION", "AUTO")
    digests.append(settings_digest(cpu(), {"seed": 1}))
    assert len(set(digests)) == 4


def test_settings_cover_the_programs_by_content(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit of one version that keeps size and date, and a file that moved, change what is
    compiled."""
    program = folder / "program"
    program.mkdir()
    monkeypatch.setattr(heteroplace, "__path__", [str(program)])
    digests = set()
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b.py", "2")):
        for old in program.iterdir():
            old.unlink()
        (program / name).write_text(text)
        os.utime(program / name, (0, 0))
        digests.add(settings_digest(cpu(), {}))
    assert len(digests) == 3


def test_settings_cover_processor_and_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {settings_digest(cpu(), {})}
    with monkeypatch.context() as patch:
        patch.setattr(
            "heteroplace.cli.models.model_cache.device_fingerprint", lambda _: "another CPU"
        )
        digests.add(settings_digest(cpu(), {}))
    with monkeypatch.context() as patch:
        patch.setattr("heteroplace.cli.models.model_cache.version", lambda _: "another version")
        digests.add(settings_digest(cpu(), {}))
    assert len(digests) == 3


def test_without_a_writable_cache_the_model_is_temporary(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(folder / "file" / "cache"))
    with NewEntry() as entry:
        assert "Not a directory" in entry.problem
        entry.write(lambda path: path.write_text("code") and None)
        path = entry.keep("s", {MODEL: "m"}, ABOUT)
        assert path.read_text() == "code"
    assert not path.parent.exists()


def test_a_cache_without_room_is_left_for_a_temporary_folder(folder: Path) -> None:
    def export(path: Path) -> None:
        if cache_folder() in path.parents:
            raise ArtifactError("no space left on device")
        path.write_text("code")

    with NewEntry() as entry:
        entry.write(export)
        path = entry.keep("s", {MODEL: "m"}, ABOUT)
        assert path.read_text() == "code"
        assert entry.problem == "no space left on device"
    assert list(cache_folder().iterdir()) == []


COMPILES = """
import sys
from heteroplace.cli.models.model_cache import NewEntry
with NewEntry() as entry:
    entry.path.write_text("half")
    print(entry.path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def compiling(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of a compilation; its first line is the path of the new file."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMPILES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    with process:
        yield process
        process.kill()


def test_leftovers_of_killed_processes_are_removed(
    folder: Path, compiling: subprocess.Popen[str]
) -> None:
    assert compiling.stdout is not None
    half = Path(compiling.stdout.readline().strip())
    compile_as("code", folder)
    assert half.read_text() == "half", "a live process lost its folder"
    compiling.send_signal(signal.SIGKILL)
    compiling.wait()
    assert half.exists()
    with NewEntry():
        assert not half.parent.exists()


@pytest.mark.parametrize("file", ["plugin.py", "plugin/inner.py"])
def test_a_changed_plugin_is_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("NUMBER = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    without = programs_digest()
    monkeypatch.setattr(model_cache, "added_modules", lambda: ["plugin", "not_installed"])
    first = programs_digest()
    assert programs_digest() == first != without
    path.write_text("NUMBER = 2\n")
    assert programs_digest() not in (first, without)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of one file, in place of all programs; an empty cache."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    path = tmp_path / "program" / "code.py"
    path.parent.mkdir()
    path.write_text("NUMBER = 1\n")
    monkeypatch.setattr(model_cache, "_programs", lambda: [("program", str(path.parent))])
    return path


def test_a_program_that_did_not_change_is_not_read_again(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cache, "_SETTLED_NS", -1)
    first = programs_digest()
    monkeypatch.setattr(model_cache, "_new_digest", lambda _: pytest.fail("it is read"))
    assert programs_digest() == first


@pytest.mark.parametrize("change", ["content", "size", "name", "another", "replaced"])
def test_a_program_that_changed_is_read_again_whatever_its_dates_say(
    program: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(model_cache, "_SETTLED_NS", -1)
    first, before = programs_digest(), program.stat()
    time.sleep(0.05)  # more than the system's clock for files counts
    new = program.with_name("new.py")
    if change in ("content", "size"):
        program.write_text("NUMBER = 2\n" if change == "content" else "NUMBER = 10\n")
    elif change == "name":
        program = program.rename(new)
    else:
        new.write_text("NUMBER = 2\n")
        if change == "replaced":
            new.rename(program)
    os.utime(program, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert programs_digest() != first


def test_a_program_that_changed_just_now_is_read_again(program: Path) -> None:
    first = programs_digest()
    program.write_text("NUMBER = 2\n")
    assert programs_digest() != first


def test_the_digest_of_a_large_file_is_kept_until_it_changes(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cache, "_SETTLED_NS", -1)
    large, small = tmp_path / "large.onnx", tmp_path / "small.onnx"
    large.write_bytes(bytes(model_cache._LARGE_BYTES))
    small.write_bytes(bytes(8))
    first, before = model_cache.digest_of(large), large.stat()
    assert model_cache.digest_of(small) == hashlib.sha256(bytes(8)).hexdigest()
    assert list(json.loads((cache_folder() / "digests.json").read_text())) == [str(large)]
    with monkeypatch.context() as patched:
        patched.setattr(model_cache, "_new_digest", lambda _: pytest.fail("it is read"))
        assert model_cache.digest_of(large) == first
    time.sleep(0.05)  # more than the system's clock for files counts
    with large.open("r+b") as file:
        file.write(b"1")
    os.utime(large, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert model_cache.digest_of(large) == hashlib.sha256(large.read_bytes()).hexdigest() != first
    large.unlink()
    with pytest.raises(FrontendError, match=r"large\.onnx: cannot be read: No such file"):
        model_cache.digest_of(large)


def test_programs_that_are_gone_are_forgotten(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cache, "_SETTLED_NS", -1)
    programs_digest()
    moved = program.parent.rename(program.parent.with_name("moved"))
    monkeypatch.setattr(model_cache, "_programs", lambda: [("program", str(moved))])
    programs_digest()
    assert list(json.loads((cache_folder() / "digests.json").read_text())) == [str(moved)]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"path": 1}', "[1, 2]"])
def test_a_damaged_list_of_programs_is_made_anew(
    program: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(model_cache, "_SETTLED_NS", -1)
    first, path = programs_digest(), cache_folder() / "digests.json"
    expected = path.read_text()
    path.write_text(content)
    assert programs_digest() == first
    assert path.read_text() == expected
