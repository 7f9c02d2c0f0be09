"""The SQLite file of a store: its tables, how it is made, what is refused.

A file that is not a store, or is damaged, or comes from a newer version is never written to.

A new store is built beside its place and moved there, so that nobody ever sees half of one. The
folder is locked meanwhile (`flock`), because of several processes that find no store only one may
make it: the second would replace what others have already written to.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from heteroplace.costs import interference_records, tunings
from heteroplace.errors import CostStoreError, CostStoreUnavailableError
from heteroplace.files.measurements import MODES

APPLICATION_ID = 0x48506373
"""In the header of every store ("HPcs"); it tells them from other SQLite files."""
VERSION = 1
"""`user_version` of the stores that are written."""
BUSY_S = 30.0
"""How long to wait for other writers; each holds the store for well under a millisecond."""
ANOTHER_PLACE = (
    "give another file with --store (for tvmc --placement-option store=FILE, or store=off) or in "
    "the variable HETEROPLACE_COSTS"
)

_TEXTS = "TEXT NOT NULL CHECK (typeof({0}) = 'text' AND {0} <> '')"
_COUNT = "INTEGER NOT NULL CHECK (typeof({0}) = 'integer' AND {0} >= {1})"
_DATE = "TEXT NOT NULL CHECK (measured_at GLOB '????-??-??T??:??:??*')"


def _text(name: str) -> str:
    return f"{name} {_TEXTS.format(name)}"


def _count(name: str, least: int = 0) -> str:
    return f"{name} {_COUNT.format(name, least)}"


_MODES = ", ".join(f"'{mode}'" for mode in MODES)
TABLES = {
    "kernels": f"id INTEGER PRIMARY KEY, {_text('hash')} UNIQUE",
    # Not part of `kernels`: ops such as reshape and squeeze may be lowered to one kernel.
    "works": f"""
        id INTEGER PRIMARY KEY,
        {_text("op")},
        shapes TEXT NOT NULL,
        {_count("flops")},
        {_count("bytes")},
        UNIQUE (op, shapes, flops, bytes)""",
    "targets": f"id INTEGER PRIMARY KEY, {_text('text')} UNIQUE",
    "devices": f"id INTEGER PRIMARY KEY, {_text('fingerprint')} UNIQUE",
    # "" is the network of a kernel that is measured alone.
    "networks": "id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE",
    "compilers": f"id INTEGER PRIMARY KEY, {_text('tvm')} UNIQUE",
    "measurements": f"""
        kernel_id INTEGER NOT NULL REFERENCES kernels (id),
        target_id INTEGER NOT NULL REFERENCES targets (id),
        device_id INTEGER NOT NULL REFERENCES devices (id),
        {_count("threads", 1)},
        {_count("batch", 1)},
        mode TEXT NOT NULL CHECK (mode IN ({_MODES})),
        network_id INTEGER NOT NULL REFERENCES networks (id),
        {_count("site", -1)},
        work_id INTEGER NOT NULL REFERENCES works (id),
        {_count("wall_ns")},
        {_count("spread_ns")},
        {_count("cpu_ns")},
        {_count("num_samples", 1)},
        measured_at {_DATE},
        compiler_id INTEGER NOT NULL REFERENCES compilers (id),
        hop_ns INTEGER CHECK (hop_ns IS NULL OR typeof(hop_ns) = 'integer' AND hop_ns >= 0),
        others_cores REAL NOT NULL CHECK (typeof(others_cores) = 'real' AND others_cores >= 0),
        CHECK ((mode = 'in place') = (site >= 0)),
        PRIMARY KEY (kernel_id, target_id, device_id, threads, batch, mode, network_id, site)""",
    "notes": f"""
        {_text("kind")},
        {_text("subject")},
        {_text("device")},
        {_text("quantity")},
        unit TEXT NOT NULL,
        measured_at {_DATE},
        value REAL NOT NULL CHECK (typeof(value) = 'real'),
        PRIMARY KEY (kind, subject, device, quantity, unit, measured_at)""",
}
"""Columns of each table."""
_LATER_TABLES = {"interferences": interference_records.TABLE, "tunings": tunings.TABLE}
"""Those that older stores of this version lack; they are added when such a store is opened."""
# The columns of the key come first, as they are stored: where they do not, the check of SQLite 3.40
# reads the wrong column and reports missing values.
_WITHOUT_ROWID = ("measurements", "notes")
# Without these, forgetting a work or a network would scan all measurements for its users.
_INDEXES = (
    "CREATE INDEX measurements_by_work ON measurements (work_id)",
    "CREATE INDEX measurements_by_network ON measurements (network_id)",
)


def open_store(path: Path, *, is_made: bool = True) -> sqlite3.Connection:
    """Check the file and return a connection to it.

    Parameters
    ----------
    path : Path
        Of the store. A file of no bytes is taken for a new store.
    is_made : bool
        Make a new store if there is none; else that is an error.

    Raises
    ------
    CostStoreError
        The file is no store, is damaged, is of another version, or cannot be written.
    """
    with explained(path):
        if not path.exists() or (path.is_file() and path.stat().st_size == 0):
            if not is_made:
                raise CostStoreError(f"{path}: there is no store of costs here; {ANOTHER_PLACE}")
            _make(path)
        _check_kind(path)
        connection = connect(path)
        try:
            _check_owner(path, _number(connection, "application_id"))
            _check_pages(path, connection)
            _check_version(path, connection)
            _check_tables(path, connection)
            _use_log(path, connection)
            _add_later_tables(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection to an existing store that any one thread at a time may use.

    Its SQL has the function matches(text, pattern), of the wildcards of fnmatch.
    """
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        timeout=BUSY_S,
        isolation_level=None,
        check_same_thread=False,
        uri=True,
    )
    connection.create_function("matches", 2, fnmatchcase, deterministic=True)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        # With a write-ahead log, a killed process loses nothing that is committed, and neither
        # does a power cut but the last moments; "FULL" would wait for the disk each time.
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the system into CostStoreError.

    It is a CostStoreUnavailableError where the store may be whole, but cannot be used now.
    """
    try:
        yield
    except OSError as fault:
        raise CostStoreUnavailableError(
            f"{path}: cannot be used as a store of costs: {fault.strerror}; {ANOTHER_PLACE}"
        ) from fault
    except sqlite3.OperationalError as fault:
        raise _operational(path, str(fault)) from fault
    except (sqlite3.DatabaseError, UnicodeDecodeError) as fault:
        # Python decodes what SQLite says, and what the columns hold.
        raise damaged(path, str(fault)) from fault


def _operational(path: Path, text: str) -> CostStoreError:
    if "locked" in text or "busy" in text:
        return CostStoreUnavailableError(
            f"{path}: another process has kept the store locked for {BUSY_S:g} s; wait for it or "
            f"end it, or {ANOTHER_PLACE}"
        )
    if "Could not decode" in text or "malformed" in text:
        return damaged(path, text)
    if "readonly" in text or "unable to open" in text:
        return _not_writable(path)
    # The disk is full or fails.
    kind = CostStoreUnavailableError if "disk" in text else CostStoreError
    return kind(f"{path}: the store cannot be used: {text}; {ANOTHER_PLACE}")


def _not_writable(path: Path) -> CostStoreUnavailableError:
    return CostStoreUnavailableError(
        f"{path}: the file or its folder cannot be written to, which a store needs even to be "
        f"read; copy it to a folder of yours, or {ANOTHER_PLACE}"
    )


def damaged(path: Path, text: str) -> CostStoreError:
    """Return the error that says what is wrong with a store."""
    return CostStoreError(
        f"{path}: the store is damaged ({text}) and was left as it is. Move it away and measure "
        f"again or import an export; `sqlite3 FILE .recover` may save some of it"
    )


def _make(path: Path) -> None:
    """Make a new store at a place where there is none, or a file of no bytes."""
    path = path.resolve()  # A link stays a link.
    if not path.parent.is_dir():
        raise CostStoreError(
            f"{path}: folder {str(path.parent)!r} does not exist; make it first, or {ANOTHER_PLACE}"
        )
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if path.exists() and path.stat().st_size > 0:
            return  # Another process was first.
        fresh = path.with_name(f".{path.name}.new")
        _unlink_all(fresh)  # of a process that was killed here
        with closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
            _create(connection)
            _use_log(path, connection)
        # A log whose store was deleted would be replayed into the new one.
        for suffix in ("-wal", "-shm", "-journal"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        if path.exists():  # Who may read a file of no bytes may read what it becomes.
            fresh.chmod(path.stat().st_mode & 0o777)
        fresh.replace(path)
    finally:
        os.close(folder)


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    for name, columns in TABLES.items():
        ending = " WITHOUT ROWID" if name in _WITHOUT_ROWID else ""
        connection.execute(f"CREATE TABLE {name} ({columns}){ending}")
    for name, columns in _LATER_TABLES.items():
        connection.execute(f"CREATE TABLE {name} ({columns})")
    for statement in _INDEXES:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def _unlink_all(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _check_kind(path: Path) -> None:
    """Refuse what is no store by its header, before anything may be written beside it.

    Read by SQLite as a file that does not change: that takes no locks and makes no log. Python's
    own `open` would do harm: closing a file drops the locks that this process has on it.
    """
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "not a regular file"
        raise CostStoreError(f"{path}: is {kind}; expected a store of costs; {ANOTHER_PLACE}")
    # SQLite would open it for reading only, and fail at the first measurement.
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        raise _not_writable(path)
    log = path.with_name(path.name + "-wal")
    for is_last in (False, True):
        try:
            _check_owner(path, _read_owner(path))
            return
        except sqlite3.DatabaseError as fault:
            if "not a database" in str(fault):
                raise CostStoreError(
                    f"{path}: is no SQLite file; expected a store of costs, and left it as it is; "
                    f"an export is read by `heteroplace costs import FILE`; {ANOTHER_PLACE}"
                ) from fault
            if "unable to open" in str(fault):
                raise _not_writable(path) from fault
            # It is cut off, or another process moves its log into it: then there was a log now or
            # before the first look. With locks, at the next step, the truth comes out.
            if log.exists():
                return
            if is_last:
                raise


def _read_owner(path: Path) -> int:
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        return _number(connection, "application_id")


def _check_owner(path: Path, owner: int) -> None:
    if owner != APPLICATION_ID:
        raise CostStoreError(
            f"{path}: is an SQLite file of another program (application_id {owner:#x}, expected "
            f"{APPLICATION_ID:#x}) and was left as it is; {ANOTHER_PLACE}"
        )


def _check_pages(path: Path, connection: sqlite3.Connection) -> None:
    verdict = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if verdict != "ok":
        raise damaged(path, str(verdict).replace("\n", " "))


def _check_tables(path: Path, connection: sqlite3.Connection) -> None:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    missing = sorted(set(TABLES) - {name for (name,) in rows})
    if missing:
        raise damaged(path, f"it lacks the tables {', '.join(missing)}")
    if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
        raise damaged(path, "a measurement refers to what is not there")


def _add_later_tables(connection: sqlite3.Connection) -> None:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    if set(_LATER_TABLES) <= {name for (name,) in rows}:
        return  # without waiting for those who write
    connection.execute("BEGIN IMMEDIATE")
    for name, columns in _LATER_TABLES.items():
        connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
    connection.execute("COMMIT")


def _check_version(path: Path, connection: sqlite3.Connection) -> None:
    version = _number(connection, "user_version")
    if version != VERSION:
        advice = "install a newer heteroplace" if version > VERSION else "measure again elsewhere"
        raise CostStoreError(
            f"{path}: the store is of version {version}, and this heteroplace reads version "
            f"{VERSION}; it was left as it is; {advice}, or {ANOTHER_PLACE}"
        )


def _use_log(path: Path, connection: sqlite3.Connection) -> None:
    """Switch to a write-ahead log; a store keeps that for good."""
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise CostStoreUnavailableError(
            f"{path}: the file system has no shared memory for a write-ahead log (is it a network "
            f"drive?); use a local disk: {ANOTHER_PLACE}"
        )


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])
