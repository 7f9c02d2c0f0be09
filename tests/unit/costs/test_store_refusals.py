"""What the store refuses to open, and that it changes nothing of it; how old stores get new."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from heteroplace.costs import store_schema
from heteroplace.costs.store import CostStore
from heteroplace.costs.store_file import rows_to_json
from heteroplace.costs.store_schema import APPLICATION_ID, open_store
from heteroplace.errors import CostStoreError
from tests.measurements import row

NUM_ROWS = 300
PAGE_BYTES = 4096
NOBODY = 65534


def make_store(path: Path) -> None:
    with CostStore(path) as store:
        store.add_many(row(number) for number in range(NUM_ROWS))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _text(path: Path) -> None:
    path.write_text("op,ns\nnn.dense,4000\n" * 100)


def _export(path: Path) -> None:
    path.write_text(json.dumps(rows_to_json([row()])))


def _foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE measurements (kernel TEXT)")


def _foreign_with_a_log(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA application_id = 252006674")
        connection.execute("CREATE TABLE kernels (name TEXT)")


def _foreign_without_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")


def _damaged(path: Path) -> None:
    make_store(path)
    data = bytearray(path.read_bytes())
    data[4 * PAGE_BYTES : 6 * PAGE_BYTES] = b"\xa5" * (2 * PAGE_BYTES)
    path.write_bytes(data)


def _cut(path: Path) -> None:
    make_store(path)
    path.write_bytes(path.read_bytes()[: 5 * PAGE_BYTES + 77])


def _header_only(path: Path) -> None:
    make_store(path)
    path.write_bytes(path.read_bytes()[:100])


def _without_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")


def _newer(path: Path) -> None:
    make_store(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 7")


def _older_than_any(path: Path) -> None:
    make_store(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 0")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_text, "is no SQLite file; expected a store of costs, and left it as it is; an export"),
        (_export, "an export is read by `heteroplace costs import FILE`; give another file"),
        (_foreign, r"an SQLite file of another program (application_id 0x0, expected 0x48506373)"),
        (_foreign_with_a_log, "of another program (application_id 0xf055112"),
        (_foreign_without_tables, "of another program (application_id 0x0"),
        (_damaged, "the store is damaged ("),
        (_cut, "the store is damaged ("),
        (_header_only, "the store is damaged ("),
        (_without_tables, "it lacks the tables compilers, devices, kernels, measurements, n"),
        (_newer, "of version 7, and this heteroplace reads version 1; it was left as it is; inst"),
        (_older_than_any, "of version 0, and this heteroplace reads version 1; it was left as"),
    ],
)
def test_what_is_no_good_store_is_refused_and_not_changed(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    path = tmp_path / "costs.sqlite"
    make(path)
    before = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(CostStoreError, match=re.escape(message)) as caught:
            CostStore(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (".", ": is a folder; expected a store of costs; give another file with --store"),
        ("/dev/null", "/dev/null: is not a regular file; expected a store of costs"),
        ("no/costs.sqlite", "folder '.*no' does not exist; make it first"),
        ("/proc/costs.sqlite", "/proc/costs.sqlite: "),
        ("file/costs.sqlite", "file/costs.sqlite: "),
    ],
)
def test_a_place_where_no_store_can_be_is_refused(tmp_path, monkeypatch, path, message) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with pytest.raises(CostStoreError, match=message):
        CostStore(path)
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_store_that_is_not_there_is_made_unless_forbidden(tmp_path: Path) -> None:
    with pytest.raises(CostStoreError, match="there is no store of costs here; give another"):
        CostStore(tmp_path / "costs.sqlite", is_made=False)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_no_bytes_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "costs.sqlite"
    path.touch(mode=0o600)
    make_store(path)
    with CostStore(path, is_made=False) as store:
        assert len(store) == NUM_ROWS
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    path = tmp_path / "costs.sqlite"
    path.symlink_to(tmp_path / "disk" / "real.sqlite")
    make_store(path)
    assert path.is_symlink()
    assert [found.name for found in (tmp_path / "disk").iterdir()] == ["real.sqlite"]


def test_the_log_of_a_store_that_was_deleted_is_not_taken_for_that_of_a_new_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "costs.sqlite"
    with CostStore(path) as old:
        old.add_many(row(number) for number in range(NUM_ROWS))
        log = (tmp_path / "costs.sqlite-wal").read_bytes()
        path.unlink()
    (tmp_path / "costs.sqlite-wal").write_bytes(log)
    with CostStore(path) as new:
        assert list(new.rows()) == []
        new.add(*row(1))
    with CostStore(path) as new:
        assert list(new.rows()) == [row(1)]


@pytest.fixture
def unprivileged_folder() -> Iterator[Path]:
    """A folder, and a user who is bound by permissions; the superuser is not."""
    folder = Path(tempfile.mkdtemp())
    is_superuser = os.geteuid() == 0
    if is_superuser:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        if is_superuser:
            os.seteuid(0)
        folder.chmod(0o700)
        shutil.rmtree(folder)


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_store_that_cannot_be_written_is_refused(unprivileged_folder, is_folder) -> None:
    path = unprivileged_folder / "costs.sqlite"
    make_store(path)
    before = contents(unprivileged_folder)
    if is_folder:
        unprivileged_folder.chmod(0o500)
    else:
        path.chmod(0o400)
    message = "cannot be written to, which a store needs even to be read; copy it to a folder"
    with pytest.raises(CostStoreError, match=message):
        CostStore(path)
    assert contents(unprivileged_folder) == before


def test_a_store_cannot_be_made_in_a_folder_that_cannot_be_written(unprivileged_folder) -> None:
    unprivileged_folder.chmod(0o500)
    with pytest.raises(CostStoreError, match="cannot be written to"):
        CostStore(unprivileged_folder / "costs.sqlite")


def test_a_store_that_stays_locked_is_an_error_that_says_so(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(store_schema, "BUSY_S", 0.05)
    path = tmp_path / "costs.sqlite"
    make_store(path)
    with CostStore(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(CostStoreError, match=r"kept the store locked for 0\.05 s; wait for it"):
            store.add(*row(1))
        assert len(store) == NUM_ROWS  # Reading goes on.
        other.execute("ROLLBACK")
        store.add(*row(NUM_ROWS))
        assert len(store) == NUM_ROWS + 1


def test_damage_that_happens_later_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "costs.sqlite"
    make_store(path)
    with CostStore(path) as store:
        # The second reader has a connection of its own, which has not read the pages before.
        first = store.rows()
        next(first)
        data = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(PAGE_BYTES)
            file.write(b"\xa5" * (len(data) - PAGE_BYTES))
        with pytest.raises(CostStoreError, match="the store is damaged"):
            list(store.rows())
        first.close()


@pytest.mark.parametrize(
    ("table", "values", "message"),
    [
        ("kernels", "(1, '')", "CHECK constraint failed"),
        ("devices", "(1, x'00')", "CHECK constraint failed"),
        ("works", "(1, 'add', '', -1, 0)", "CHECK constraint failed"),
        ("works", "(1, 'add', '', 0.5, 0)", "CHECK constraint failed"),
        (
            "measurements",
            "(1, 1, 1, 1, 1, 'hot', 1, -1, 1, 0, 0, 0, 1, '2026-01-31T12:00:00Z', 1, NULL, 0.0)",
            "FOREIGN KEY constraint failed",
        ),
        ("notes", "('a', 'b', 'c', 'd', 'e', 'today', 1.0)", "CHECK constraint failed"),
    ],
)
def test_the_tables_themselves_refuse_nonsense(tmp_path, table, values, message) -> None:
    with (
        closing(open_store(tmp_path / "costs.sqlite")) as connection,
        pytest.raises(sqlite3.IntegrityError, match=message),
    ):
        connection.execute(f"INSERT INTO {table} VALUES {values}")


def _text_that_is_none(path: Path) -> None:
    make_store(path)
    data = path.read_bytes()
    assert b"nn.dense" in data
    path.write_bytes(data.replace(b"nn.dense", b"nn.d\xff\xfe\x80e"))


def _changed(path: Path, statement: str) -> None:
    make_store(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(statement)
        connection.commit()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a text that is none": _text_that_is_none,
    "a control character": lambda path: _changed(path, "UPDATE targets SET text = char(27)"),
    "bytes as a text": lambda path: _changed(path, "UPDATE works SET shapes = x'ff00'"),
    "a lost kernel": lambda path: _changed(path, "DELETE FROM kernels WHERE id = 1"),
    "no place for a site": lambda path: _changed(path, "UPDATE measurements SET site = 7"),
}


def read_all(path: Path) -> None:
    with CostStore(path) as store:
        list(store.rows())


@pytest.mark.parametrize("name", sorted(DAMAGES))
def test_damage_that_is_met_when_rows_are_read_is_told(tmp_path: Path, name: str) -> None:
    path = tmp_path / "costs.sqlite"
    DAMAGES[name](path)
    with pytest.raises(CostStoreError, match=r"the store is damaged \(.*\) and was left"):
        read_all(path)
