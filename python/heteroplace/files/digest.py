"""Files -> the digest of their bytes: equal only where the bytes are, whatever their dates say."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

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


def program_digest(folder: str | os.PathLike[str]) -> str:
    """Return the SHA-256, in hex, of the names and bytes of a package's code and tables.

    Raises
    ------
    OSError
        A file cannot be read.
    """
    digest = hashlib.sha256()
    for root, folders, names in os.walk(folder):
        folders.sort()  # os.walk follows this order
        for name in sorted(names):
            if not name.endswith(_PROGRAM_ENDINGS):
                continue
            path = os.path.join(root, name)  # noqa: PTH118 (pathlib takes twice as long)
            digest.update(f"\0{os.path.relpath(path, folder)}\0".encode())
            digest.update(file_digest(path).encode())
    return digest.hexdigest()
