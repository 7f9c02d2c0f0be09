"""Folders that processes write in, locked while they do: those of killed processes can be removed.

The lock is `flock` on the folder itself, which the system drops when its process ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


def make_locked_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """Make a folder and lock it.

    Returns
    -------
    Its path, and a file descriptor; to close the descriptor unlocks the folder.

    Raises
    ------
    OSError
        The folder cannot be made.
    """
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        number = None
        try:
            number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with suppress(OSError):  # a file system without locks; then nothing is removed either
                fcntl.flock(number, fcntl.LOCK_EX)
            if os.path.samestat(folder.stat(), os.fstat(number)):
                return folder, number
        except FileNotFoundError:
            pass  # another process removed it before it was locked
        if number is not None:
            os.close(number)


def remove_unlocked_folders(parent: Path, prefix: str) -> None:
    """Remove the folders of processes that were killed; those of live processes stay."""
    for folder in parent.glob(f"{prefix}*"):
        try:
            number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # it is no folder, is gone, or belongs to another user
            continue
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # it is locked, or the file system has no locks
            pass
        finally:
            os.close(number)
