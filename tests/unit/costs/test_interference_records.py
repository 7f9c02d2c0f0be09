"""Interference in the store: kept as measured, found by its key, refused where it is damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from heteroplace.costs.interference_records import (
    MAX_RUNS,
    InterferenceKey,
    InterferenceRecord,
    thinned,
)
from heteroplace.costs.store import CostStore
from heteroplace.costs.store_values import StoreFilter
from heteroplace.errors import CostStoreError

KEY = InterferenceKey("d1", "llvm", "a cpu", 2)
RECORD = InterferenceRecord(
    alone_ns=[5.0, 0.0],
    slowdown=[1.25, 1.0],
    copy_slowdown=[1.0, 1.5],
    scatter=[[1.0, 0.5], [2.0, 1.0]],
    fetch_ns_per_byte=0.25,
    core_to_core_ns=40,
)
DATE = "2026-01-31T12:00:00+00:00"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CostStore]:
    with CostStore(tmp_path / "costs.sqlite") as opened:
        yield opened


def test_a_record_is_found_as_it_was_kept(store: CostStore) -> None:
    assert store.find_interference(KEY, 2) is None
    store.add_interference(KEY, RECORD, DATE)
    assert store.find_interference(KEY, 2) == RECORD
    for other in ({"network": "d2"}, {"target": "x"}, {"device": "y"}, {"threads": 1}):
        assert store.find_interference(replace(KEY, **other), 2) is None  # type: ignore[arg-type]


def test_the_newest_record_of_a_key_stays(store: CostStore) -> None:
    newer = InterferenceRecord(**{**_fields(RECORD), "core_to_core_ns": 90})
    store.add_interference(KEY, newer, "2026-02-01T12:00:00+00:00")
    store.add_interference(KEY, RECORD, DATE)
    assert store.find_interference(KEY, 2) == newer


def _fields(record: InterferenceRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "missing required field"),
        ('{"alone_ns": [1', "truncated"),
        ('{"alone_ns": [1], "slowdown": [1], "copy_slowdown": [1], "scatter": [[1]], '
         '"fetch_ns_per_byte": 0, "core_to_core_ns": 0}', "are not for 2 tasks"),
        ('{"alone_ns": [1, 1], "slowdown": [-1, 1], "copy_slowdown": [1, 1], "scatter": [[1, 1]], '
         '"fetch_ns_per_byte": 0, "core_to_core_ns": 0}', "negative figures"),
        ('{"alone_ns": [1, 1], "slowdown": [1, 1], "copy_slowdown": [1, 1], "scatter": [], '
         '"fetch_ns_per_byte": 0, "core_to_core_ns": 0}', "are not for 2 tasks"),
        ('{"alone_ns": [1, 1], "slowdown": [1, 1], "copy_slowdown": [1, 1], "scatter": [[1, 1]], '
         '"fetch_ns_per_byte": -1, "core_to_core_ns": 0}', "negative figures"),
    ],
)  # fmt: skip
def test_a_damaged_record_is_refused_and_can_be_forgotten(
    store: CostStore, text: str, message: str
) -> None:
    store.add_interference(KEY, RECORD, DATE)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("UPDATE interferences SET found = ?", (text,))
    with pytest.raises(CostStoreError, match=message) as fault:
        store.find_interference(KEY, 2)
    assert "heteroplace costs forget --network d1" in str(fault.value)
    assert store.forget(StoreFilter(network="d1")) == 0
    assert store.find_interference(KEY, 2) is None


def test_forgetting_ops_leaves_interference(store: CostStore) -> None:
    store.add_interference(KEY, RECORD, DATE)
    store.forget(StoreFilter(op="nn.conv2d"))
    store.forget(StoreFilter(measured_before="2026-01-01T00:00:00Z"))
    assert store.find_interference(KEY, 2) == RECORD
    store.forget(StoreFilter(measured_before="2026-03-01T00:00:00Z"))
    assert store.find_interference(KEY, 2) is None


def test_a_store_without_the_table_gets_it_when_it_is_opened(store: CostStore) -> None:
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("DROP TABLE interferences")
    with CostStore(store.path) as again:
        again.add_interference(KEY, RECORD, DATE)
        assert again.find_interference(KEY, 2) == RECORD


def test_runs_are_thinned_evenly_and_rounded() -> None:
    assert thinned([[0.123456], [1.0]]) == [[0.1235], [1.0]]
    found = thinned([[float(index)] for index in range(3 * MAX_RUNS)])
    assert found == [[float(3 * index)] for index in range(MAX_RUNS)]
