"""A release has no table that was made more than 200 commits before it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.tables.command import BENCH, MANIFEST
from benchmarks.tables.store import read_manifest

MAX_COMMITS = 200
ROOT = Path(__file__).resolve().parent.parent


def git(*arguments: str, folder: Path = ROOT) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def old_tables(commits: dict[str, str], folder: Path) -> list[str]:
    """Return the tables, by name the commit of each, that are older, with their ages."""
    ages = {
        name: int(git("rev-list", "--count", f"{commit}..HEAD", folder=folder))
        for name, commit in commits.items()
    }
    return [f"{name}: {age} commits old" for name, age in ages.items() if age > MAX_COMMITS]


def test_a_release_has_no_old_table() -> None:
    tags = git("tag", "--points-at", "HEAD", "--list", "v*")
    if not tags:
        pytest.skip("no release is checked out")
    commits = {name: each.stamp.commit for name, each in read_manifest(BENCH / MANIFEST).items()}
    assert not old_tables(commits, ROOT), "make tables"


@pytest.mark.costly(3)
def test_the_age_of_a_table_is_counted_in_commits(tmp_path: Path) -> None:
    git("init", "-q", folder=tmp_path)
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    commits = []
    for number in range(MAX_COMMITS + 2):
        git(*who, "commit", "-q", "--allow-empty", "-m", str(number), folder=tmp_path)
        commits.append(git("rev-parse", "HEAD", folder=tmp_path))
    tables = {"old": commits[0], "new enough": commits[1], "new": commits[-1]}
    assert old_tables(tables, tmp_path) == [f"old: {MAX_COMMITS + 1} commits old"]
