"""Compiled kernels in the user's cache, so that another model does not make the same ones again.

They lie in one SQLite file next to the compiled models. The key of a kernel covers what it
computes, the options of the pass context, and the programs that made it. Only commands use the
cache, as they run no code but that of those programs. It only saves time: if the file is damaged,
kernels are made anew.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from heteroplace.cli.models.model_cache import cache_folder, programs_digest
from heteroplace.entries import load_entry
from heteroplace.errors import CostStoreError

_LOG = logging.getLogger(__name__)

_FILE = "kernels.sqlite"
_MAX_BYTES = 256 * 2**20
"""Of all kernels; one has about 30 KB. Those that were not used for longest are removed first."""
_WAIT_S = 5.0
"""For other processes that write."""
_DIGEST_BYTES = 16
_KEPT_KERNELS = "heteroplace.lower.library:KEPT_KERNELS"

_MAKE_TABLE = (
    "CREATE TABLE IF NOT EXISTS kernels "
    "(key BLOB PRIMARY KEY, content BLOB NOT NULL, digest BLOB NOT NULL, used REAL NOT NULL)"
)
_FIND = "SELECT content, digest FROM kernels WHERE key = ?"
_USE = "UPDATE kernels SET used = ? WHERE key = ?"
_ADD = "INSERT OR REPLACE INTO kernels VALUES (?, ?, ?, ?)"
_FORGET = (
    "DELETE FROM kernels WHERE key IN (SELECT key FROM (SELECT key, "
    "SUM(LENGTH(content)) OVER (ORDER BY used DESC, key) AS newer_bytes FROM kernels) "
    "WHERE newer_bytes > ?)"
)


@contextmanager
def keeping_kernels() -> Iterator[None]:
    """Keep the kernels that are made in the block, and use those that were kept before."""
    variable = load_entry(_KEPT_KERNELS)
    token = variable.set(KernelCache())
    try:
        yield
    finally:
        variable.reset(token)


class KernelCache:
    """What `heteroplace.lower.library` asks for kernels that were made before.

    Parameters
    ----------
    max_bytes
        What all kernels may have together.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._programs = ""
        """Their digest; "": it was not needed yet."""

    def find(self, symbols: Collection[str], options: str) -> Mapping[str, bytes]:
        """Return those of these kernels that are kept and whole, by symbol."""
        contents: dict[str, bytes] = {}
        with _going_on(), self._open() as file:
            for symbol in symbols:
                row = file.execute(_FIND, [self._key(symbol, options)]).fetchone()
                if row is not None and _digest(row[0]) == row[1]:
                    contents[symbol] = row[0]
            now = time.time()
            file.executemany(_USE, [(now, self._key(symbol, options)) for symbol in contents])
        return contents

    def add(self, kernels: Mapping[str, bytes], options: str) -> None:
        """Keep kernels, given by symbol."""
        now = time.time()
        rows = [
            (self._key(symbol, options), content, _digest(content), now)
            for symbol, content in kernels.items()
        ]
        with _going_on(), self._open() as file:
            file.executemany(_ADD, rows)
            file.execute(_FORGET, [self._max_bytes])

    def _key(self, symbol: str, options: str) -> bytes:
        self._programs = self._programs or programs_digest()
        return _digest(f"{self._programs}\n{symbol}\n{options}".encode())

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction."""
        path = kernel_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=_WAIT_S)) as file, file:
            file.execute(_MAKE_TABLE)
            yield file


def kernel_file() -> Path:
    """Return where the kernels are.

    Raises
    ------
    CostStoreError
        The user has no home.
    """
    return cache_folder() / _FILE


@contextmanager
def _going_on() -> Iterator[None]:
    """Go on without the cache if it cannot be used. Where the folder cannot be written to, the
    command says already that it does not keep the model."""
    try:
        yield
    except (sqlite3.OperationalError, OSError, CostStoreError) as err:
        _LOG.info("kernels are not kept: %s", err)
    except sqlite3.DatabaseError as err:
        _LOG.warning("%s: %s; remove it, so that kernels are kept again", kernel_file(), str(err))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
