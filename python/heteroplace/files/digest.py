"""Files -> the digest of their bytes: equal only where the bytes are, whatever their dates say."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from heteroplace.control_groups import usable_cores

_BLOCK_BYTES = 2**22
_PROGRAM_ENDINGS = (".py", ".so", ".json")


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file in hex.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def digest_by_blocks(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256, in hex, of the digests of a file's blocks, which all cores compute.

    That of one block is its SHA-256. Errors: see `file_digest`.
    """
    with Path(path).open("rb") as file:

        def of_block(begin: int) -> bytes:
            return hashlib.sha256(os.pread(file.fileno(), _BLOCK_BYTES, begin)).digest()

        begins = range(0, os.fstat(file.fileno()).st_size, _BLOCK_BYTES)
        if len(begins) <= 1:
            return of_block(0).hex()
        with ThreadPoolExecutor(usable_cores()) as pool:
            return hashlib.sha256(b"".join(pool.map(of_block, begins))).hexdigest()


def program_digest(folder: str | os.PathLike[str]) -> str:
    """Return the SHA-256, in hex, of the names and digests of a package's code and tables.

    Raises
    ------
    OSError
        A file cannot be read.
    """
    digest = hashlib.sha256()
    for path in _program_files(folder):
        digest.update(f"\0{os.path.relpath(path, folder)}\0".encode())
        digest.update(digest_by_blocks(path).encode())
    return digest.hexdigest()


def program_state(path: str | os.PathLike[str]) -> tuple[str, int]:
    """Return the state of a package's code and tables, or of one file, and when it last changed.

    The state covers names, sizes, inodes and times. No program can choose when a file's last change
    was (`st_ctime_ns`). So equal states mean equal bytes, unless a file changed just now.

    Returns
    -------
    The SHA-256 in hex, and the time in ns since 1970.

    Raises
    ------
    OSError
        A file cannot be looked at.
    """
    digest, newest = hashlib.sha256(), 0
    for file in _program_files(path) if os.path.isdir(path) else [os.fspath(path)]:  # noqa: PTH112
        state = os.stat(file)  # noqa: PTH116 (pathlib takes twice as long)
        numbers = state.st_size, state.st_ino, state.st_mtime_ns, state.st_ctime_ns
        digest.update(f"\0{file}\0{numbers}".encode())
        newest = max(newest, state.st_ctime_ns)
    return digest.hexdigest(), newest


def _program_files(folder: str | os.PathLike[str]) -> Iterator[str]:
    """The paths of a package's code and tables, in a fixed order."""
    for root, folders, names in os.walk(folder):
        folders.sort()  # os.walk follows this order
        for name in sorted(names):
            if name.endswith(_PROGRAM_ENDINGS):
                yield os.path.join(root, name)  # noqa: PTH118 (pathlib takes twice as long)
