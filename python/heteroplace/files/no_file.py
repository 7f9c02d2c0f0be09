"""What stands where a file is expected -> the words of a message."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from heteroplace.files.reader import near_file

_KINDS = (
    (stat.S_ISDIR, "is a folder"),
    (stat.S_ISFIFO, "is a named pipe (FIFO), which cannot be read twice"),
    (stat.S_ISSOCK, "is a socket"),
    (stat.S_ISCHR, "is a device"),
    (stat.S_ISBLK, "is a device"),
)


def why_no_file(path: str | os.PathLike[str]) -> str:
    """Return what a path is that is no regular file.

    >>> why_no_file("/"), why_no_file("/dev/null"), why_no_file("/nowhere/x")
    ('is a folder', 'is a device', 'there is no such file')
    """
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        if Path(path).is_symlink():
            return f"is a link to {Path(path).readlink()}, which is not there"
        return f"there is no such file{near_file(path)}"
    except NotADirectoryError:
        return "there is no such file: a part of its path is no folder"
    except OSError as fault:
        return f"cannot be read: {fault.strerror}"
    except ValueError as fault:
        return f"is no path: {fault}"
    reason = next((words for is_of, words in _KINDS if is_of(mode)), "is no regular file")
    models = sorted(Path(path).glob("*.onnx")) if stat.S_ISDIR(mode) else []
    return f"{reason}; did you mean {models[0]}?" if len(models) == 1 else reason
