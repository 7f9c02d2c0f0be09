"""Where results go: a file is replaced as a whole, all else is written to as it is.

A symbolic link stays one: the file that it names is replaced. Devices, pipes and the standard
streams (`/dev/stdout`) cannot be replaced, and are written to.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from heteroplace.errors import HeteroPlaceError


def json_text(
    value: object,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    ensure_ascii: bool = True,
) -> str:
    """Return JSON that any reader takes: NaN and infinity, which JSON does not have, are null.

    >>> json_text({"ratio": [0.5, float("nan")]})
    '{"ratio": [0.5, null]}'
    """

    def text(of: object) -> str:
        return json.dumps(
            of,
            indent=indent,
            separators=separators,
            ensure_ascii=ensure_ascii,
            allow_nan=False,
        )

    try:
        return text(value)
    except ValueError:  # some are not finite
        return text(_finite(value))


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def write_text(text: str, path: str | os.PathLike[str]) -> None:
    """Write `text` to `path` as UTF-8; see `write_bytes`."""
    write_bytes(text.encode(), path)


def write_bytes(data: bytes | memoryview, path: str | os.PathLike[str]) -> None:
    """Write `data` to `path`; any thread.

    Atomic where `path` is a file, or is not there: readers see the old file or the new one. Who
    may read and write it stays what it was.

    Raises
    ------
    OSError
        The folder does not exist or cannot be written to, or the disk is full; it names `path`.
    """
    with naming(path):
        target = final_path(path)
        if not is_replaceable(target):
            _write_in_place(data, target)
            return
    with replacing(path) as file, naming(path):
        file.write(data)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let an OSError of the block name this file: none, or a temporary one, says nothing."""
    try:
        yield
    except OSError as err:
        raise OSError(err.errno, err.strerror, os.fspath(path)) from err


def open_new(path: str | os.PathLike[str]) -> BinaryIO:
    """Open an empty file at `path` for writing bit by bit.

    It replaces a file of that name rather than emptying it: whoever reads or has mapped the old
    one keeps it.

    Raises
    ------
    OSError
        As `write_bytes`.
    """
    with naming(path):
        target = final_path(path)
        if not is_replaceable(target):
            return target.open("wb")
        temporary = _temporary_name(target)
        file = _new_file(temporary, _mode_of(target))
        try:
            put_in_place(temporary, path)
        except BaseException:
            file.close()
            temporary.unlink(missing_ok=True)
            raise
        return file


def _temporary_name(target: Path) -> Path:
    """A name beside `target`, which keeps writers of one file apart, of this process too."""
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")


def put_in_place(part: Path, path: str | os.PathLike[str]) -> None:
    """Make a finished file `part` what `path` is, as `write_bytes` does; `part` may be moved.

    `part` is in the folder of `final_path(path)` or below, so that it can be moved there.

    Raises
    ------
    OSError
        As `write_bytes`.
    """
    with naming(path):
        target = final_path(path)
        if is_replaceable(target):
            mode = _mode_of(target)
            if mode is not None:
                part.chmod(mode)
            part.replace(target)
        else:
            _write_in_place(part.read_bytes(), target)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a file that becomes `path` when the block ends well, and is removed otherwise.

    A device or a pipe is written to as it is.

    Raises
    ------
    OSError
        As `write_bytes`.
    """
    with naming(path):
        target = final_path(path)
        is_moved = is_replaceable(target)
        part = _temporary_name(target)  # of several writers the last one wins
        file = _new_file(part, _mode_of(target)) if is_moved else target.open("wb")
    try:
        try:
            yield file
        finally:
            with naming(path):
                file.close()
        if is_moved:
            put_in_place(part, path)
    finally:
        if is_moved:
            part.unlink(missing_ok=True)


def _new_file(path: Path, mode: int | None) -> BinaryIO:
    """Open a new file; others may not read it before it has the `mode` of a file that is there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    number = os.open(path, flags, 0o666 if mode is None else 0o600)
    return os.fdopen(number, "wb")


def _mode_of(target: Path) -> int | None:
    """Who may read, write and run a file; None: it is not there."""
    try:
        return target.stat().st_mode & 0o777
    except FileNotFoundError:
        return None


def check_writable(*paths: str | Path | None) -> None:
    """Raise HeteroPlaceError before the work if a file could not be written after it."""
    for path in paths:
        if path is None:
            continue
        folder = Path(path).parent
        if not folder.is_dir():
            raise HeteroPlaceError(f"{path}: folder {str(folder)!r} does not exist; make it first")
        if Path(path).is_dir():
            raise HeteroPlaceError(f"{path}: is a folder; give the name of a file")
        target = final_path(path)
        if not is_replaceable(target):  # Asked of the file alone: it is not replaced.
            if not os.access(target, os.W_OK):
                raise HeteroPlaceError(f"{path}: cannot be written to; give another file")
            continue
        folder = target.parent
        if not folder.is_dir():
            raise HeteroPlaceError(
                f"{path}: leads to {target}, whose folder does not exist; make it first"
            )
        if not os.access(folder, os.W_OK):
            raise HeteroPlaceError(
                f"{path}: folder {str(folder)!r} cannot be written to; give another one"
            )


def final_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of what is written to: of links, where they lead.

    Raises
    ------
    OSError
        Links lead in a circle.
    """
    given = Path(path).absolute()
    if not given.is_symlink():
        return given
    if given.exists() and not is_replaceable(given):
        return given  # What /dev/stdout leads to may have no path of its own.
    path_written = Path(os.path.realpath(given))
    if path_written.is_symlink():
        raise OSError(errno.ELOOP, "its links lead in a circle", str(given))
    return path_written


def is_replaceable(path: Path) -> bool:
    """Tell whether `path` is a regular file that is no standard stream, or is not there."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return True
    return stat.S_ISREG(status.st_mode) and _stream_of(status) is None


def _stream_of(status: os.stat_result) -> int | None:
    """The descriptor of the standard stream that goes where `found` is; None: none does."""
    for number in (1, 2):
        try:
            is_same = os.path.samestat(os.fstat(number), status)
        except OSError:  # It is closed.
            continue
        if is_same:
            return number
    return None


def _write_in_place(data: bytes | memoryview, target: Path) -> None:
    stream = _stream_of(target.stat())
    if stream is None:
        with target.open("wb", buffering=0) as file:
            _write_all(file.fileno(), data)
        return
    # After what was printed, not over it: opened anew, a file would be written from its beginning.
    sys.stdout.flush()
    sys.stderr.flush()
    _write_all(stream, data)


def _write_all(number: int, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(number, left) :]
