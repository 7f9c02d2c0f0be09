"""The store of measured kernels: what was measured once is never measured again.

One SQLite file with a write-ahead log. Each `add` is a transaction of its own, so a process that is
killed loses at most the measurement that it was writing. Any number of threads and processes may
use a store at once. A key has one measurement, the newest.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from heteroplace.costs.interference_records import (
    InterferenceKey,
    InterferenceRecord,
    read_record,
    write_record,
)
from heteroplace.costs.measurement import Measurement
from heteroplace.costs.store_schema import ANOTHER_PLACE, connect, damaged, explained, open_store
from heteroplace.costs.store_values import (
    KEY_FIELDS,
    NOTE_FIELDS,
    ROW_FIELDS,
    Row,
    StoreFilter,
    checked_note_of,
    checked_row_of,
    note_values,
    row_values,
)
from heteroplace.errors import CostStoreError, CostStoreUnavailableError
from heteroplace.files.measurements import KernelKey, Note, a_date

T = TypeVar("T")
PATH_VARIABLE = "HETEROPLACE_COSTS"
"""Environment variable with the path of the store to use by default."""

# Columns of each field of a row, in the order of ROW_FIELDS.
_COLUMNS = {name: f"measurements.{name}" for name in ROW_FIELDS} | {
    "kernel": "kernels.hash",
    "target": "targets.text",
    "device": "devices.fingerprint",
    "network": "networks.digest",
    "op": "works.op",
    "shapes": "works.shapes",
    "flops": "works.flops",
    "bytes": "works.bytes",
    "tvm": "compilers.tvm",
}
_FROM = """
    FROM measurements
    JOIN kernels ON kernels.id = kernel_id
    JOIN targets ON targets.id = target_id
    JOIN devices ON devices.id = device_id
    JOIN networks ON networks.id = network_id
    JOIN works ON works.id = work_id
    JOIN compilers ON compilers.id = compiler_id"""
_SELECT = f"SELECT {', '.join(_COLUMNS.values())} {_FROM}"
_FIND = f"{_SELECT} WHERE {' AND '.join(f'{_COLUMNS[name]} = ?' for name in KEY_FIELDS)}"
_ORDER = ", ".join(
    _COLUMNS[name] for name in ("device", "target", "op", "shapes", "flops", "bytes", *KEY_FIELDS)
)
# Tables that a measurement refers to, with the fields of a row that they hold.
_REFERRED = {
    "kernels": {"hash": "kernel"},
    "targets": {"text": "target"},
    "devices": {"fingerprint": "device"},
    "networks": {"digest": "network"},
    "works": {name: name for name in ("op", "shapes", "flops", "bytes")},
    "compilers": {"tvm": "tvm"},
}
# Dates are compared without their zone, which is UTC in all but is written in two ways.
_IS_NEWER = "substr(excluded.measured_at, 1, 19) >= substr({}.measured_at, 1, 19)"


def _insert_referred(table: str, columns: dict[str, str]) -> str:
    values = ", ".join(f":{field}" for field in columns.values())
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values}) ON CONFLICT DO NOTHING"


def _insert_measurement() -> str:
    values = {}
    for table, columns in _REFERRED.items():
        condition = " AND ".join(f"{column} = :{field}" for column, field in columns.items())
        values[f"{table[:-1]}_id"] = f"(SELECT id FROM {table} WHERE {condition})"
    inner = {field for columns in _REFERRED.values() for field in columns.values()}
    values |= {field: f":{field}" for field in ROW_FIELDS if field not in inner}
    changed = [name for name in values if name not in _PRIMARY]
    return (
        f"INSERT INTO measurements ({', '.join(values)}) VALUES ({', '.join(values.values())}) "
        f"ON CONFLICT ({', '.join(_PRIMARY)}) DO UPDATE SET "
        f"{', '.join(f'{name} = excluded.{name}' for name in changed)} "
        f"WHERE {_IS_NEWER.format('measurements')}"
    )


_PRIMARY = (
    *("kernel_id", "target_id", "device_id", "threads"),
    *("batch", "mode", "network_id", "site"),
)
_INSERTS = tuple(_insert_referred(table, columns) for table, columns in _REFERRED.items())
_INSERT = _insert_measurement()
_INSERT_NOTE = (
    f"INSERT INTO notes ({', '.join(NOTE_FIELDS)}) VALUES ({', '.join('?' * len(NOTE_FIELDS))}) "
    f"ON CONFLICT (kind, subject, device, quantity, unit, measured_at) "
    f"DO UPDATE SET value = excluded.value"
)


def default_path() -> Path:
    """Return where the store is: $HETEROPLACE_COSTS, else costs.sqlite in the user's cache folder.

    Raises
    ------
    CostStoreUnavailableError
        No variable is set, and the user has no home.
    """
    chosen = os.environ.get(PATH_VARIABLE)
    return Path(chosen) if chosen else user_cache_folder() / "costs.sqlite"


def user_cache_folder() -> Path:
    """Return the folder of heteroplace in the user's cache.

    That is $XDG_CACHE_HOME/heteroplace, or ~/.cache/heteroplace.

    Raises
    ------
    CostStoreUnavailableError
        The user has no home.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a path that is not absolute is to be ignored.
    try:
        folder = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    except RuntimeError as fault:
        raise CostStoreUnavailableError(
            f"there is no cache folder: {fault} Set XDG_CACHE_HOME to the path of one, or "
            f"{ANOTHER_PLACE}"
        ) from fault
    return folder / "heteroplace"


class CostStore:
    """Measured kernels by key, and notes on links and interference, in one file.

    Any thread may call any method; each call in progress has a connection of its own. A store that
    was opened before a fork may be used on both sides.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, CostStore(folder + "/costs.sqlite") as store:
    ...     len(store)
    0
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, is_made: bool = True) -> None:
        """Open the store, which is checked as a whole, and made if it is not there.

        Parameters
        ----------
        path : path, optional
            By default `default_path()`, whose folder is made too.
        is_made : bool
            False: a store that is not there is an error.

        Raises
        ------
        CostStoreError
            The file is no store, is damaged, is of a newer version, or cannot be written.
        """
        self._path = default_path() if path is None else Path(path)
        if path is None and is_made:
            with explained(self._path):
                self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._process = os.getpid()
        # Guarded by `_lock`: connections that no call is using.
        self._free: list[sqlite3.Connection] | None = [open_store(self._path, is_made=is_made)]
        # Connections of the process that this one was forked from; to close them here would drop
        # its locks.
        self._inherited: list[sqlite3.Connection] = []

    @property
    def path(self) -> Path:
        """Of the file."""
        return self._path

    def __enter__(self) -> CostStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the store; calls in progress end as they would have. May be called twice."""
        with self._lock:
            self._take_over()
            free, self._free = self._free or [], None
        for connection in free:
            connection.close()

    def add(self, key: KernelKey, measurement: Measurement) -> None:
        """Store one measurement in a transaction of its own.

        It replaces an older one of the same key; where the store has a newer one, that stays.

        Raises
        ------
        CostStoreError
            A value is not what its field is for, or the store cannot be written.
        """
        self.add_many([(key, measurement)])

    def add_many(self, rows: Iterable[Row], notes: Iterable[Note] = ()) -> int:
        """Store all of them or, on an error, none; raises as `add`.

        Returns
        -------
        int
            How many measurements were stored; the others are older than what the store has.
        """
        checked = [
            dict(zip(ROW_FIELDS, row_values(key, measured), strict=True)) for key, measured in rows
        ]
        checked_notes = [note_values(note) for note in notes]
        num_stored = 0
        with self.transaction("IMMEDIATE") as connection:
            for values in checked:
                for statement in _INSERTS:
                    connection.execute(statement, values)
                num_stored += connection.execute(_INSERT, values).rowcount
            connection.executemany(_INSERT_NOTE, checked_notes)
        return num_stored

    def find(self, key: KernelKey) -> Measurement | None:
        """Return the measurement of a key, or None if it was never measured."""
        return self.find_many([key]).get(key)

    def find_many(self, keys: Iterable[KernelKey]) -> dict[KernelKey, Measurement]:
        """Return the measurements of those keys that have one, in the order of the keys."""
        measurements = {}
        with self.transaction("DEFERRED") as connection:
            for key in dict.fromkeys(keys):
                values = [getattr(key, name) for name in KEY_FIELDS]
                row = connection.execute(_FIND, values).fetchone()
                if row is not None:
                    measurements[key] = self._row(row)[1]
        return measurements

    def rows(self, only: StoreFilter | None = None) -> Iterator[Row]:
        """Iterate over what the filter lets through, by device, target, op, shapes and key.

        What is stored or forgotten after the first row does not change what comes.
        """
        where, values = _where(only or StoreFilter())  # A fault in it is told here and now.
        return self._rows(f"{_SELECT} {where} ORDER BY {_ORDER}", values)

    def forget(self, only: StoreFilter) -> int:
        """Remove what the filter lets through, and return how many measurements that were.

        Interference goes too, unless the filter is about ops, modes or batches, which it has not.
        """
        where, values = _where(only)
        with self.transaction("IMMEDIATE") as connection:
            key = ", ".join(_PRIMARY)
            removed = connection.execute(
                f"DELETE FROM measurements WHERE ({key}) IN (SELECT {key} {_FROM} {where})", values
            ).rowcount
            for table in _REFERRED:
                connection.execute(
                    f"DELETE FROM {table} WHERE id NOT IN "
                    f"(SELECT {table[:-1]}_id FROM measurements)"
                )
            if only.op is None and only.mode is None and only.batch is None:
                where, values = _where(only, {name: name for name in _COLUMNS})
                connection.execute(f"DELETE FROM interferences {where}", values)
        return removed

    def __len__(self) -> int:
        """Return the number of measurements."""
        with self.transaction("DEFERRED") as connection:
            return int(connection.execute("SELECT count(*) FROM measurements").fetchone()[0])

    def __bool__(self) -> bool:
        """A store is true also while it is empty."""
        return True

    def notes(self) -> list[Note]:
        """Return all notes, those of one thing by date, the newest last."""
        order = "kind, subject, device, quantity, unit, substr(measured_at, 1, 19)"
        with self.transaction("DEFERRED") as connection:
            query = f"SELECT {', '.join(NOTE_FIELDS)} FROM notes ORDER BY {order}"
            return [self._checked(checked_note_of, row) for row in connection.execute(query)]

    def forget_notes(self) -> int:
        """Remove all notes, and return how many that were."""
        with self.transaction("IMMEDIATE") as connection:
            return connection.execute("DELETE FROM notes").rowcount

    def add_interference(self, key: InterferenceKey, record: InterferenceRecord, date: str) -> None:
        """Keep what was measured of interference at a date; see `write_record`."""
        with self.transaction("IMMEDIATE") as connection:
            write_record(connection, key, record, date)

    def find_interference(self, key: InterferenceKey, num_tasks: int) -> InterferenceRecord | None:
        """Return what was measured of interference; see `read_record`."""
        with self.transaction("DEFERRED") as connection:
            return read_record(connection, key, num_tasks)

    def _row(self, values: tuple[Any, ...]) -> Row:
        return self._checked(checked_row_of, values)

    def _checked(self, read: Callable[[tuple[Any, ...]], T], values: tuple[Any, ...]) -> T:
        try:
            return read(values)
        except CostStoreError as fault:
            raise damaged(self._path, str(fault)) from fault

    def _rows(self, query: str, values: list[Any]) -> Iterator[Row]:
        with self.transaction("DEFERRED") as connection:
            for row in connection.execute(query, values):
                yield self._row(row)

    @contextmanager
    def transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction, which ends with the block: all of it or nothing."""
        with explained(self._path):
            connection = self._take()
            try:
                connection.execute(f"BEGIN {kind}")
                yield connection
                connection.execute("COMMIT")
            finally:
                try:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                finally:
                    self._give_back(connection)

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            self._take_over()
            if self._free is None:
                raise CostStoreError(f"{self._path}: the store was closed; open it again")
            if self._free:
                return self._free.pop()
        return connect(self._path)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if self._free is not None:
                self._free.append(connection)
                return
        connection.close()

    def _take_over(self) -> None:
        """Set aside the connections of another process; SQLite forbids to use them after a fork."""
        if self._process != os.getpid():
            self._process = os.getpid()
            if self._free is not None:
                self._inherited += self._free
                self._free = []


def _where(
    only: StoreFilter, columns: Mapping[str, str] = MappingProxyType(_COLUMNS)
) -> tuple[str, list[Any]]:
    """SQL of a filter and the values for it; `columns` by the names of fields."""
    conditions: list[str] = []
    values: list[Any] = []
    for name in ("op", "device", "target", "network"):
        pattern = getattr(only, name)
        if pattern is not None:
            # A target string may hold brackets, and is then no pattern for itself.
            conditions.append(f"({columns[name]} = ? OR matches({columns[name]}, ?))")
            values += [pattern, pattern]
    exact = {name: f"{columns[name]} = ?" for name in ("mode", "batch", "threads")}
    exact["measured_before"] = f"substr({columns['measured_at']}, 1, 19) < substr(?, 1, 19)"
    for name, condition in exact.items():
        value = getattr(only, name)
        if value is None:
            continue
        try:
            values.append(ROW_FIELDS.get(name, a_date)(value))
        except ValueError as fault:
            raise CostStoreError(f"filter: {name}: expected {fault}, got {value!r}") from fault
        conditions.append(condition)
    return (f"WHERE {' AND '.join(conditions)}" if conditions else ""), values
