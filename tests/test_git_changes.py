"""A change is counted from where its commits left the tested ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.git_changes import UnknownCommitError, files_of_change

ROOT = Path(__file__).resolve().parent.parent


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=any", "-c", "user.email=any@example.com")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commits of a file on each of some days of a month, the last two on the same day."""
    folder = tmp_path / "history"
    git(tmp_path, "init", "--quiet", "--initial-branch", "main", str(folder))
    for name, day in (("a", "01"), ("b", "02"), ("c", "10"), ("d", "10")):
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"2026-01-{day}T12:00:00")
        (folder / name).write_text(name)
        git(folder, "add", name)
        git(folder, "commit", "--quiet", "--message", name)
    return folder


def test_on_the_main_branch_it_is_the_last_day(history: Path) -> None:
    assert files_of_change(history) == ["c", "d"]
    git(history, "update-ref", "refs/remotes/origin/main", "HEAD")
    assert files_of_change(history) == ["c", "d"]


def test_on_another_branch_it_is_what_is_ahead_of_the_main_branch(history: Path) -> None:
    git(history, "update-ref", "refs/remotes/origin/main", "HEAD~1")
    git(history, "tag", "tested", "HEAD~3")
    assert files_of_change(history) == ["d"]


def test_on_the_main_branch_it_is_what_came_after_the_commit_that_was_tested(history: Path) -> None:
    git(history, "tag", "tested", "HEAD~3")
    assert files_of_change(history) == ["b", "c", "d"]
    git(history, "tag", "--force", "tested", "HEAD~1")
    assert files_of_change(history) == ["d"]


def test_ci_may_say_which_commit_landed_last(history: Path) -> None:
    git(history, "update-ref", "refs/remotes/origin/main", "HEAD~1")
    assert files_of_change(history, git(history, "rev-parse", "HEAD~2")) == ["c", "d"]
    assert files_of_change(history, "HEAD") == []
    with pytest.raises(UnknownCommitError, match=r"'nowhere'.*git fetch --unshallow"):
        files_of_change(history, "nowhere")


def test_files_that_are_not_committed_or_have_moved_belong_to_it(history: Path) -> None:
    git(history, "update-ref", "refs/remotes/origin/main", "HEAD~1")
    git(history, "mv", "b", "moved")
    (history / "a").write_text("not committed")
    (history / "gr\u00fcn e").write_text("")
    assert files_of_change(history) == ["a", "b", "d", "gr\u00fcn e", "moved"]


def test_nobody_knows_it_without_history(history: Path, tmp_path: Path) -> None:
    shallow, none = tmp_path / "shallow", tmp_path / "none"
    git(tmp_path, "clone", "--quiet", "--depth", "1", history.as_uri(), str(shallow))
    none.mkdir()
    git(history, "checkout", "--quiet", "main~3")
    assert files_of_change(shallow) is None
    assert files_of_change(none) is None
    assert files_of_change(history) is None, "its first day"


def test_a_run_since_an_unknown_commit_is_refused_before_it_begins() -> None:
    command = [sys.executable, "-m", "pytest", "-n2", "-q", "--since", "nowhere", __file__]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--since: " in done.stderr and "INTERNALERROR" not in done.stdout + done.stderr
