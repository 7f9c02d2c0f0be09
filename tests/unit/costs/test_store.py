"""The store of measured kernels: what goes in comes out, newest first, by any filter."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from heteroplace.costs.measurement import Conditions, Measurement
from heteroplace.costs.store import CostStore, default_path
from heteroplace.costs.store_values import (
    CONDITION_FIELDS,
    MEASUREMENT_FIELDS,
    StoreFilter,
)
from heteroplace.errors import CostStoreError
from tests.measurements import LLVM, NOON, note, row
from tests.random_measurements import notes, unique_rows
from tests.strategies import exact_cases

BEFORE_NOON = "2026-01-31T11:59:59+00:00"
EVERYTHING = StoreFilter()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CostStore]:
    with CostStore(tmp_path / "costs.sqlite") as opened:
        yield opened


@pytest.fixture(scope="module")
def one_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CostStore]:
    """For properties, which empty it first: to make one takes longer than the case."""
    with CostStore(tmp_path_factory.mktemp("store") / "costs.sqlite") as opened:
        yield opened


def test_the_fields_are_those_of_the_values() -> None:
    def names(kind: type) -> list[str]:
        return [field.name for field in fields(kind)]

    assert [*MEASUREMENT_FIELDS, "conditions"] == names(Measurement)
    assert list(CONDITION_FIELDS) == names(Conditions)


def test_what_was_added_is_found_after_opening_again(tmp_path: Path) -> None:
    key, measurement = row(1)
    with CostStore(tmp_path / "costs.sqlite") as store:
        store.add(key, measurement)
    with CostStore(tmp_path / "costs.sqlite") as store:
        assert store.find(key) == measurement
        assert store.find(structs.replace(key, threads=2)) is None
    assert [path.name for path in tmp_path.iterdir()] == ["costs.sqlite"]


@exact_cases(50)
@given(unique_rows, st.lists(notes, max_size=3))
def test_every_row_and_note_comes_out_as_it_went_in(one_store, some, some_notes) -> None:
    one_store.forget(EVERYTHING)
    one_store.forget_notes()
    assert one_store.add_many(some, some_notes) == len(some)
    assert one_store.find_many(key for key, _ in some) == dict(some)
    assert sorted(one_store.rows()) == sorted(some)
    # The value is not part of what a note is about.
    latest = {structs.astuple(structs.replace(added, value=0.0)): added for added in some_notes}
    assert set(one_store.notes()) == set(latest.values())
    assert len(one_store) == len(some)


@exact_cases(50)
@given(unique_rows, st.data())
def test_a_filter_lets_through_what_it_says(one_store, some, data) -> None:
    one_store.forget(EVERYTHING)
    one_store.add_many(some)
    wanted = data.draw(st.sampled_from(["a", "A", "it's", "[a]", "*"]), label="device")
    only = StoreFilter(device=wanted, mode=data.draw(st.sampled_from([None, "hot"]), label="mode"))
    expected = {
        key
        for key, _ in some
        if only.mode in (None, key.mode)
        and (wanted in ("*", key.device) or (wanted == "[a]" and key.device == "a"))
    }
    assert {key for key, _ in one_store.rows(only)} == expected
    assert one_store.forget(only) == len(expected)
    assert dict(one_store.rows()) == {key: value for key, value in some if key not in expected}


def test_the_newer_measurement_of_a_key_stays(store: CostStore) -> None:
    store.add(*row(1, wall_ns=7))
    assert store.add_many([row(1, wall_ns=5, measured_at=BEFORE_NOON)]) == 0
    assert [measured.wall_ns for _, measured in store.rows()] == [7]
    # The same second in the other spelling of the zone is as new.
    assert store.add_many([row(1, wall_ns=9, measured_at=NOON.replace("+00:00", "Z"))]) == 1
    assert [measured.wall_ns for _, measured in store.rows()] == [9]


def test_two_ops_that_are_lowered_to_one_kernel_keep_their_names(store: CostStore) -> None:
    store.add(*row(1, op="reshape"))
    store.add(*row(1, op="squeeze", batch=2))
    assert [measured.op for _, measured in store.rows()] == ["reshape", "squeeze"]


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (StoreFilter(), [0, 1, 2, 3]),
        (StoreFilter(op="nn.*"), [0, 2]),
        (StoreFilter(op="nn"), []),
        (StoreFilter(op="*[xd]d"), [0, 2, 3]),
        (StoreFilter(device="*A100*"), [2]),
        (StoreFilter(target="llvm*"), [0, 1, 3]),
        (StoreFilter(target="cuda -mattr=[a]"), [2]),
        (StoreFilter(threads=2), [1]),
        (StoreFilter(batch=4), [3]),
        (StoreFilter(mode="in place"), [0]),
        (StoreFilter(network="d?"), [0]),
        (StoreFilter(measured_before=NOON), [1]),
        (StoreFilter(op="nn.*", target="llvm*"), [0]),
    ],
)
def test_filters(store: CostStore, only: StoreFilter, expected: list[int]) -> None:
    store.add_many(
        [
            row(0, site=3),
            row(1, measured_at=BEFORE_NOON, op="reshape", threads=2),
            row(2, device="NVIDIA A100", target="cuda -mattr=[a]"),
            row(3, op="add", batch=4),
        ]
    )
    assert sorted(int(key.kernel, 16) for key, _ in store.rows(only)) == expected
    assert store.forget(only) == len(expected)
    assert len(store) == 4 - len(expected)


@pytest.mark.parametrize(
    ("only", "message"),
    [
        (StoreFilter(mode="warm"), "filter: mode: expected one of hot, cold, in place, got 'warm'"),
        (StoreFilter(batch=0), "filter: batch: expected a whole number >= 1"),
        (StoreFilter(measured_before="today"), "filter: measured_before: expected a date"),
    ],
)
def test_a_filter_that_nothing_can_meet_is_an_error(store, only, message) -> None:
    with pytest.raises(CostStoreError, match=message):
        store.rows(only)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wall_ns": -1}, "wall_ns: expected a whole number >= 0, got -1"),
        ({"wall_ns": 1.5}, "wall_ns: expected a whole number >= 0, got 1.5"),
        ({"cpu_ns": 2**63}, "cpu_ns: expected a whole number >= 0 that 63 bits hold"),
        ({"num_samples": 0}, "num_samples: expected a whole number >= 1"),
        ({"op": ""}, "op: expected text of printable characters that is not empty, got ''"),
        ({"shapes": "a\nb"}, r"shapes: expected text of printable characters, got 'a\\nb'"),
        ({"flops": True}, "flops: expected a whole number >= 0, got True"),
        ({"op": None, "bytes": -2}, "op: .*, got None; bytes: .*, got -2"),
    ],
)
def test_a_wrong_measurement_is_an_error_and_nothing_is_stored(store, changes, message) -> None:
    key, measurement = row(1)
    with pytest.raises(CostStoreError, match=f"measurement of kernel '0+1'.*{message}"):
        store.add_many([row(2), (key, replace(measurement, **changes))])
    assert len(store) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"measured_at": "2026-01-31 12:00"}, "measured_at: expected a date and time in UTC"),
        ({"measured_at": "2026-02-30T12:00:00Z"}, "measured_at: expected a date and time in UTC"),
        ({"measured_at": "2026-01-31T12:00:00+01:00"}, "measured_at: expected a date and time"),
        ({"others_cores": float("nan")}, "others_cores: expected a number of cores >= 0, got nan"),
        ({"hop_ns": -1}, "hop_ns: expected a whole number >= 0, got -1"),
    ],
)
def test_wrong_conditions_are_an_error(store: CostStore, changes, message) -> None:
    key, measurement = row(1)
    conditions = replace(measurement.conditions, **changes)
    with pytest.raises(CostStoreError, match=message):
        store.add(key, replace(measurement, conditions=conditions))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "in place"}, "expected a network and a site >= 0 with the mode 'in place'"),
        ({"network": "d"}, "expected no network and site -1 with the mode 'hot', got 'd' and -1"),
        ({"site": 3}, "expected no network and site -1 with the mode 'hot', got '' and 3"),
        ({"site": -2}, "site: expected a whole number >= 0, or -1 for none, got -2"),
        ({"mode": "warm"}, "mode: expected one of hot, cold, in place, got 'warm'"),
    ],
)
def test_a_key_that_contradicts_itself_is_an_error(store: CostStore, changes, message) -> None:
    key, measurement = row(1)
    with pytest.raises(CostStoreError, match=message):
        store.add(structs.replace(key, **changes), measurement)


def test_rows_come_in_order_and_are_those_of_the_beginning(store: CostStore) -> None:
    store.add_many([row(3), row(1), row(2, device="A"), row(1, threads=2)])
    seen = []
    for key, measurement in store.rows():
        seen.append((key.device, int(key.kernel, 16), key.threads))
        store.add(structs.replace(key, device="Z"), measurement)
    assert [numbers for _, *numbers in seen] == [[2, 1], [1, 1], [1, 2], [3, 1]]
    assert len(store) == 8


def test_rows_that_are_not_read_to_the_end_hold_nothing_up(store: CostStore) -> None:
    store.add_many([row(1), row(2)])
    started = store.rows()
    next(started)
    started.close()
    store.add(*row(3))
    assert len(store) == 3


def test_notes_keep_their_history_by_date(store: CostStore) -> None:
    store.add_many([], [note(900)])
    store.add_many([], [note(812.5, BEFORE_NOON)])
    store.add_many([], [note(4, subject="gpu0->ram")])
    store.add_many([], [note(901)])
    assert [found.value for found in store.notes()] == [4, 812.5, 901]
    assert store.forget_notes() == 3
    assert store.notes() == []


def test_a_wrong_note_is_an_error(store: CostStore) -> None:
    with pytest.raises(CostStoreError, match=r"note on 'ram->gpu0'.*value: expected a finite"):
        store.add_many([], [note(float("inf"))])
    assert store.notes() == []


def test_an_empty_store_is_true_and_a_closed_one_is_an_error(tmp_path: Path) -> None:
    store = CostStore(tmp_path / "costs.sqlite")
    assert store
    store.close()
    store.close()
    with pytest.raises(CostStoreError, match="the store was closed; open it again"):
        store.find(row()[0])


def test_threads_share_one_store(store: CostStore) -> None:
    def work(thread: int) -> None:
        for number in range(25):
            key, measurement = row(100 * thread + number)
            store.add(key, measurement)
            assert store.find(key) == measurement

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store) == 200


def test_default_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HETEROPLACE_COSTS", "x.sqlite")
    assert default_path() == Path("x.sqlite")
    monkeypatch.setenv("HETEROPLACE_COSTS", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_path() == tmp_path / "heteroplace" / "costs.sqlite"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".cache/heteroplace/costs.sqlite"
    with CostStore() as store:
        assert store.path == default_path()
        store.add(*row(target=LLVM))
    assert default_path().is_file()
