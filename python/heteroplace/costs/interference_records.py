"""What the store keeps of measured interference: one record for a network on one device.

Found by the digest of the network as it ran and of what ran beside it, so that a record is taken
only for what was measured. The values are a JSON text.
"""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from heteroplace.errors import CostStoreError

MAX_RUNS = 128
"""Rows of `scatter` that are kept, spread evenly over all."""
_DIGITS = 4
TABLE = """
    network TEXT NOT NULL CHECK (typeof(network) = 'text' AND network <> ''),
    target TEXT NOT NULL CHECK (typeof(target) = 'text' AND target <> ''),
    device TEXT NOT NULL CHECK (typeof(device) = 'text' AND device <> ''),
    threads INTEGER NOT NULL CHECK (typeof(threads) = 'integer' AND threads >= 1),
    measured_at TEXT NOT NULL CHECK (measured_at GLOB '????-??-??T??:??:??*'),
    found TEXT NOT NULL CHECK (typeof(found) = 'text'),
    PRIMARY KEY (network, target, device, threads)"""
"""Columns of the table `interferences`."""
_INSERT = (
    "INSERT INTO interferences (network, target, device, threads, measured_at, found) "
    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (network, target, device, threads) DO UPDATE SET "
    "measured_at = excluded.measured_at, found = excluded.found "
    "WHERE substr(excluded.measured_at, 1, 19) >= substr(interferences.measured_at, 1, 19)"
)
_FIND = """
    SELECT found FROM interferences
    WHERE network = ? AND target = ? AND device = ? AND threads = ?"""


@dataclass(frozen=True)
class InterferenceKey:
    """What makes two measurements of interference comparable."""

    network: str
    """Digest of the network as it ran, and of what ran beside it."""
    target: str
    """TVM target string of the device."""
    device: str
    """Fingerprint of the processor."""
    threads: int
    """Cores of the device; 1 for a GPU."""


class InterferenceRecord(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What was measured on one device; the fields are those of `Interference`, of one device."""

    alone_ns: list[float]
    slowdown: list[float]
    copy_slowdown: list[float]
    scatter: list[list[float]]
    """[num_runs][num_tasks], at most MAX_RUNS rows."""
    fetch_ns_per_byte: float
    core_to_core_ns: int

    def fault(self, num_tasks: int) -> str:
        """Return what is wrong with it as a record of so many tasks; "" if nothing is."""
        columns = (self.alone_ns, self.slowdown, self.copy_slowdown, *self.scatter)
        if not self.scatter or any(len(column) != num_tasks for column in columns):
            return f"its figures are not for {num_tasks} tasks"
        ratios = (self.slowdown, self.copy_slowdown, *self.scatter)
        if min(map(min, ratios), default=1.0) < 0 or min(self.alone_ns, default=0.0) < 0:
            return "it has negative figures"
        if self.fetch_ns_per_byte < 0 or self.core_to_core_ns < 0:
            return "it has negative figures"
        return ""


def thinned(scatter: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return at most MAX_RUNS of the rows, rounded, as a record keeps them."""
    count = min(len(scatter), MAX_RUNS)
    rows = (scatter[index * len(scatter) // count] for index in range(count))
    return [[round(float(value), _DIGITS) for value in row] for row in rows]


def write_record(
    connection: sqlite3.Connection, key: InterferenceKey, record: InterferenceRecord, date: str
) -> None:
    """Keep a record; an older one of the same key is replaced.

    Parameters
    ----------
    connection
        Within a transaction for writing.
    date
        When it was measured, ISO 8601 in UTC.
    """
    text = msgspec.json.encode(record).decode()
    connection.execute(_INSERT, (*_values(key), date, text))


def read_record(
    connection: sqlite3.Connection, key: InterferenceKey, num_tasks: int
) -> InterferenceRecord | None:
    """Return the record of a key for a network of so many tasks; None: there is none.

    Raises
    ------
    CostStoreError
        There is one, and it is damaged.
    """
    row = connection.execute(_FIND, _values(key)).fetchone()
    if row is None:
        return None
    try:
        record = msgspec.json.decode(row[0], type=InterferenceRecord)
        fault = record.fault(num_tasks)
    except (msgspec.MsgspecError, UnicodeError) as err:
        fault = str(err)
    if fault:
        raise CostStoreError(
            f"the interference that the store holds of network {key.network} is damaged: {fault}; "
            f"remove it: heteroplace costs forget --network {shlex.quote(key.network)}"
        )
    return record


def _values(key: InterferenceKey) -> tuple[str, str, str, int]:
    return key.network, key.target, key.device, key.threads
