"""A store that its caller can do without: a full disk, a lock that stays, damage."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from heteroplace.costs import store_schema
from heteroplace.costs.interference_records import InterferenceKey, InterferenceRecord
from heteroplace.costs.optional_store import OptionalStore
from heteroplace.costs.store import CostStore
from heteroplace.errors import CostStoreError, CostStoreUnavailableError
from tests.measurements import row
from tests.programs import files_of_at_most

KEY = InterferenceKey("network", "llvm", "processor", 1)
RECORD = InterferenceRecord(
    alone_ns=[1.0],
    slowdown=[1.0],
    copy_slowdown=[1.0],
    scatter=[[1.0]],
    fetch_ns_per_byte=0.0,
    core_to_core_ns=0,
)
DATE = "2026-01-31T12:00:00+00:00"


def test_it_is_a_store_while_it_can_be_used(tmp_path: Path) -> None:
    reports: list[CostStoreUnavailableError] = []
    with OptionalStore(tmp_path / "costs.sqlite", reports.append) as store:
        key, measurement = row(1)
        store.add(key, measurement)
        store.add_interference(KEY, RECORD, DATE)
        assert store.find(key) == measurement
        assert store.find_interference(KEY, 1) == RECORD
    assert not reports


def test_on_a_full_disk_nothing_more_is_stored_or_looked_up(tmp_path: Path) -> None:
    path = tmp_path / "costs.sqlite"
    reports: list[CostStoreUnavailableError] = []
    key, measurement = row(1)
    with OptionalStore(path, reports.append) as store:
        store.add(key, measurement)
        with files_of_at_most(path.with_name("costs.sqlite-wal").stat().st_size):
            assert store.add_many(row(number) for number in range(2, 400)) == 0
            assert store.add_many([row(2)]) == 0
            store.add_interference(KEY, RECORD, DATE)
            assert store.find_many([key]) == {}
            assert store.find_interference(KEY, 1) is None
    (report,) = reports
    assert str(path) in str(report)
    with CostStore(path) as store:
        assert [stored for stored, _ in store.rows()] == [key]


def test_a_store_that_stays_locked_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_schema, "BUSY_S", 0.05)
    path = tmp_path / "costs.sqlite"
    reports: list[CostStoreUnavailableError] = []
    with OptionalStore(path, reports.append) as store, closing(sqlite3.connect(path)) as other:
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            store.add(*row(1))
        other.execute("ROLLBACK")
    (report,) = reports
    assert "locked for 0.05 s" in str(report)


def test_a_foreign_file_is_still_an_error(tmp_path: Path) -> None:
    path = tmp_path / "costs.sqlite"
    path.write_text("text")
    with pytest.raises(CostStoreError, match="is no SQLite file") as caught:
        OptionalStore(path, pytest.fail)
    assert not isinstance(caught.value, CostStoreUnavailableError)
