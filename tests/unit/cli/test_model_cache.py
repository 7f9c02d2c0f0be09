"""The cache of compiled models: what is found again, and what is not."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.instances import cpu

import heteroplace
from heteroplace.cli.model_cache import (
    CACHE_VARIABLE,
    About,
    NewEntry,
    cache_folder,
    look_up,
    model_key,
    stamp,
)
from heteroplace.errors import FrontendError, HeteroPlaceError
from heteroplace.files.reader import read_json


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path


def keep(key: str, text: str, about: About) -> Path:
    with NewEntry(key) as entry:
        entry.path.write_text(text)
        return entry.keep(about)


def test_what_is_kept_is_found(folder: Path) -> None:
    weights = folder / "weights.bin"
    weights.write_bytes(b"1")
    about = About({"x": (0.0, float("inf"))}, {str(weights): stamp(weights)}, 2.5)
    assert look_up("k") is None
    path = keep("k", "code", about)
    assert look_up("k") == (path, about)
    assert path.read_text() == "code"
    keep("k", "newer", about)
    assert path.read_text() == "newer"
    assert [entry.name for entry in cache_folder().iterdir()] == ["k"]


def test_what_is_kept_of_a_range_without_end_is_json(folder: Path) -> None:
    ranges = {"x": (0.0, math.inf), "y": (-math.inf, -1.0), "z": (-math.inf, math.inf)}
    path = keep("k", "code", About(ranges, {}, 2.5))
    (about,) = path.parent.glob("*.json")
    assert read_json(about, HeteroPlaceError)["seconds"] == 2.5
    assert look_up("k") == (path, About(ranges, {}, 2.5))


def test_a_file_beside_the_model_that_changed_is_noticed(folder: Path) -> None:
    weights = folder / "weights.bin"
    weights.write_bytes(b"1")
    keep("k", "code", About({}, {str(weights): stamp(weights)}, 0.0))
    weights.write_bytes(b"12")
    assert look_up("k") is None
    weights.unlink()
    assert look_up("k") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"legal": 3, "others": {}, "seconds": 1}'])
def test_a_damaged_entry_is_made_again(folder: Path, text: str) -> None:
    path = keep("k", "code", About({}, {}, 0.0))
    (path.parent / "about.json").write_text(text)
    assert look_up("k") is None


def test_what_fails_leaves_nothing(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), NewEntry("k"):
        raise KeyboardInterrupt
    assert list(cache_folder().iterdir()) == []


def test_the_key_is_of_all_that_the_model_depends_on(folder: Path) -> None:
    model = folder / "m.onnx"
    model.write_bytes(b"one")
    key = model_key(model, cpu(), {"seed": 1})
    assert key == model_key(model, cpu(), {"seed": 1})
    others = [
        model_key(model, replace(cpu(), name="other"), {"seed": 1}),
        model_key(model, cpu(), {"seed": 2}),
    ]
    model.write_bytes(b"two")
    others.append(model_key(model, cpu(), {"seed": 1}))
    assert len({key, *others}) == 4
    with pytest.raises(FrontendError, match="cannot be read"):
        model_key(folder / "lost.onnx", cpu(), {})


def test_another_heteroplace_finds_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one version, but a file of it has changed: what is compiled may have, too."""
    model = folder / "m.onnx"
    model.write_bytes(b"one")
    program = folder / "program"
    program.mkdir()
    (program / "pipeline.py").write_text("1")
    monkeypatch.setattr(heteroplace, "__path__", [str(program)])
    keys = set()
    for text in ("1", "12"):
        (program / "pipeline.py").write_text(text)
        keys.add(model_key(model, cpu(), {}))
    assert len(keys) == 2


def test_a_folder_that_cannot_be_written_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(folder / "file" / "cache"))
    with pytest.raises(HeteroPlaceError, match=f"name another folder in {CACHE_VARIABLE}"):
        NewEntry("k").__enter__()
