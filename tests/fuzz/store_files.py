"""Cases of damaged stores of costs: bits turned, pages swapped, texts that are none, files cut."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from heteroplace.costs.store import CostStore
from heteroplace.costs.store_values import StoreFilter
from tests.fuzz.json_mutations import mutate_bytes
from tests.measurements import note, row

_PAGE_BYTES = 4096
_BAD_VALUES = (
    *("CAST(x'ff41' AS TEXT)", "x'ff'", "NULL", "''", "-1", "9223372036854775807", "1e400"),
    *("'\x1b[31m'", "1.5", "'text'", "char(0)"),
)


@cache
def _good() -> bytes:
    """A store of a few pages."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "costs.sqlite"
        with CostStore(path) as store:
            rows = [row(number, op=f"op{number % 7}", site=number % 3 - 1) for number in range(60)]
            store.add_many(rows, [note(), note(1.0, subject="gpu0->ram")])
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return path.read_bytes()


def run_case(seed: str, number: int, folder: Path) -> str:
    """Use one damaged store; returns "right", or raises the typed error that refuses it."""
    random = Random(f"{seed} store {number}")
    path = folder / f"{number}.sqlite"
    path.write_bytes(_good())
    if random.random() < 0.4:
        _change_value(path, random)
    else:
        path.write_bytes(_damaged(_good(), random))
    with CostStore(path, is_made=False) as store:
        rows = list(store.rows())
        assert len(rows) == len(store)
        assert store.find_many([key for key, _ in rows]) == dict(rows)
        assert list(store.rows(StoreFilter(op="op1*", device="[a]"))) == []
        notes = store.notes()
        store.add_many([row(1000)], [note(2.0)])
        third = StoreFilter(op="op3")
        num_third = len(list(store.rows(third)))
        assert store.forget(third) == num_third and not list(store.rows(third))
        assert store.forget_notes() >= len(notes)
    return "right"


def _damaged(data: bytes, random: Random) -> bytes:
    found = bytearray(data)
    kind = random.randrange(4)
    num_pages = len(found) // _PAGE_BYTES
    if kind == 0:
        return mutate_bytes(data, random)
    if kind == 1:
        page, other = (random.randrange(num_pages) * _PAGE_BYTES for _ in range(2))
        found[page : page + _PAGE_BYTES] = data[other : other + _PAGE_BYTES]
    elif kind == 2:
        at, size = random.randrange(len(found)), random.choice((1, 4, 64, _PAGE_BYTES))
        found[at : at + size] = random.randbytes(len(found[at : at + size]))
    else:  # Letters of texts, which no check of SQLite looks at.
        for _ in range(4):
            at = data.find(random.choice((b"nn.", b"op1", b"float32", b"llvm", b"Xeon", b"2026-")))
            found[at + random.randrange(3)] = random.choice((0, 0xFF, 0xC3, 0x1B, 0x80))
    return bytes(found)


def _change_value(path: Path, random: Random) -> None:
    """Put a value where the columns' own checks do not allow it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        table = random.choice(("kernels", "works", "targets", "measurements", "notes", "compilers"))
        columns = [entry[1] for entry in connection.execute(f"PRAGMA table_info({table})")]
        column, value = random.choice(columns), random.choice(_BAD_VALUES)
        try:
            connection.execute(
                f"UPDATE {table} SET {column} = {value} "
                f"WHERE {columns[0]} = (SELECT min({columns[0]}) FROM {table})"
            )
        except sqlite3.DatabaseError:
            connection.execute(f"DROP TABLE {table}")
