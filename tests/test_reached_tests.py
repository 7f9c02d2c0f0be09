"""Imports lead from a changed file to the tests that it can break, the nearest first."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.commit_turns import files_of_change
from tests.reached_tests import distances, module_of, read_importers, read_names


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A package of four modules and three files of tests."""
    files = {
        "python/heteroplace/__init__.py": "",
        "python/heteroplace/low.py": "",
        "python/heteroplace/high.py": "from heteroplace import (\n    low,  # a comment\n)\n",
        "python/heteroplace/entries.py": 'ENTRIES = {"high": "heteroplace.high:Solver"}\n',
        "python/heteroplace/native/__init__.py": "",
        "python/heteroplace/native/lists.py": "",
        "tests/__init__.py": "",
        "tests/unit/conftest.py": "from heteroplace.low import value\n",
        "tests/unit/test_fixture.py": "",
        "tests/test_entries.py": "def test_it():\n    import heteroplace.entries as entries\n",
        "tests/test_core.py": "from heteroplace.native.lists import schedule\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_names_are_read_from_imports_and_from_strings_of_registries() -> None:
    text = 'from a.b import (\n    c,\n    d as e,\n)\nimport f.g as h, i\nX = "heteroplace.j:K"\n'
    assert [*read_names(text)] == ["a.b", "a.b.c", "a.b.d", "f.g", "i", "heteroplace.j"]


def test_a_change_reaches_tests_through_imports_entries_and_fixtures(checkout: Path) -> None:
    steps = distances(read_importers(checkout), ["python/heteroplace/low.py", "README.md"])
    assert steps == {
        "heteroplace.low": 0,
        "heteroplace.high": 1,
        "heteroplace.entries": 2,
        "tests.unit.conftest": 1,
        "tests.unit.test_fixture": 2,
        "tests.test_entries": 3,
    }


def test_a_change_of_the_core_reaches_what_calls_it(checkout: Path) -> None:
    steps = distances(read_importers(checkout), ["src/list/engine.cc"])
    assert steps["tests.test_core"] == 1
    assert "tests.test_entries" not in steps


def test_every_module_of_this_checkout_has_a_name() -> None:
    assert module_of("python/heteroplace/native/__init__.py") == "heteroplace.native"
    assert module_of("docs/index.md") is None
    importers = read_importers(Path(__file__).resolve().parent.parent)
    assert "tests.test_reached_tests" in importers["tests.reached_tests"]


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=any", "-c", "user.email=any@example.com")
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def commit(folder: Path, name: str, date: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit a new file on a day."""
    monkeypatch.setenv("GIT_COMMITTER_DATE", f"2026-01-{date}T12:00:00")
    (folder / name).write_text("")
    git(folder, "add", name)
    git(folder, "commit", "--quiet", "--message", name)


def test_a_change_is_what_is_ahead_of_main_or_the_last_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert files_of_change(tmp_path) == [], "there is no history"
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    for name, date in (("old", "01"), ("older", "02"), ("recent", "10"), ("new", "10")):
        commit(tmp_path, name, date, monkeypatch)
    assert files_of_change(tmp_path) == ["new", "recent"]
    git(tmp_path, "update-ref", "refs/remotes/origin/main", "HEAD~1")
    assert files_of_change(tmp_path) == ["new"]
    (tmp_path / "old").write_text("not committed")
    assert files_of_change(tmp_path) == ["new", "old"]
