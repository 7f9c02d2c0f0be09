"""A checkout -> the files of the change that its tests are chosen for."""

from __future__ import annotations

import subprocess
from pathlib import Path

DAY_S = 86_400
TESTED = "refs/tags/tested"
"""Where a maintainer says which commit has passed `make test-all`."""


class UnknownCommitError(Exception):
    """A commit that the history does not have."""


def seed_of_commit(folder: Path) -> int:
    """Return the first digits of the commit that is checked out, as a number; 0 without git."""
    return int(_git(folder, "rev-parse", "HEAD")[:8] or "0", 16)


def base_of_change(folder: Path, since: str = "") -> str:
    """Return the commit that the change is counted from; "": there is no such commit.

    It is the first of these that exists and is older than the commit that is checked out: the
    commit where the branch left `origin/main`, the one that the tag `tested` names, and the last
    one that is a day older.

    Parameters
    ----------
    since
        What CI knows of the last commit that landed. It comes before all others.

    Raises
    ------
    UnknownCommitError
        The history has no commit `since`.
    """
    if since:
        base = _git(folder, "merge-base", since, "HEAD")
        if not base:
            raise UnknownCommitError(
                f"{folder}: HEAD has no history in common with {since!r}. Name a commit that "
                "`git log` shows, and fetch the whole history (git fetch --unshallow)."
            )
        return base
    head = _git(folder, "rev-parse", "HEAD")
    if _git(folder, "rev-parse", "--is-shallow-repository") != "false":
        return ""
    for commit in ("refs/remotes/origin/main", TESTED):
        base = _git(folder, "merge-base", commit, "HEAD")
        if base not in ("", head):
            return base
    newest = int(_git(folder, "log", "-1", "--format=%ct") or "0")
    return _git(folder, "rev-list", "-1", f"--before={newest - DAY_S}", "HEAD")


def files_of_change(folder: Path, since: str = "") -> list[str] | None:
    """Return the changed files, relative to the root of the checkout; None: nobody knows them.

    Changes that are not committed and new files belong to the change. A file that was moved
    changes at both of its places. See `base_of_change` for `since` and what is raised.
    """
    base = base_of_change(folder, since)
    if not base:
        return None
    changed = _git(folder, "diff", "--name-only", "--no-renames", "-z", base)
    new = _git(folder, "ls-files", "--others", "--exclude-standard", "-z")
    return sorted({name for name in (*changed.split("\0"), *new.split("\0")) if name})


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of a command of git; "" where there is no git, or no such commit."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
