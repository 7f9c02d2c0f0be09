"""What was tuned, in the store: trials add up, the better schedule stays, and only what is kept is
used."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from heteroplace.costs.store import CostStore
from heteroplace.costs.tunings import (
    TunedPlace,
    Tuning,
    add_trials,
    count_tunings,
    find_tunings,
    forget_tunings,
    keep_schedule,
    kept_digest,
)
from heteroplace.errors import CostStoreError

PLACE = TunedPlace("llvm", "a cpu")
DATE = "2026-01-31T12:00:00+00:00"
FIRST = Tuning("d1", "nn.dense", "float32[1,2]", 8, "[1]", 500, "", 0, 0, DATE)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CostStore]:
    with CostStore(tmp_path / "costs.sqlite") as opened:
        yield opened


def test_the_faster_schedule_stays_and_trials_add_up(store: CostStore) -> None:
    add_trials(store, PLACE, FIRST)
    add_trials(store, PLACE, replace(FIRST, found="[2]", found_ns=600))
    assert find_tunings(store, PLACE) == {"d1": replace(FIRST, trials=16)}
    add_trials(store, PLACE, replace(FIRST, found="[3]", found_ns=400))
    assert find_tunings(store, PLACE) == {
        "d1": replace(FIRST, trials=24, found="[3]", found_ns=400)
    }
    # A round in which nothing ran takes nothing away.
    add_trials(store, PLACE, replace(FIRST, found="", found_ns=0))
    assert find_tunings(store, PLACE)["d1"].found == "[3]"


def test_what_lost_beside_another_goes_whatever_its_time_once_was(store: CostStore) -> None:
    """Beside ours, of 1200 ns on one core, the stored one took 1100 and another 900."""
    add_trials(store, PLACE, FIRST)
    now = replace(FIRST, found="[2]", found_ns=900)
    add_trials(store, PLACE, now, beaten="[0]")  # another search has stored [1] meanwhile
    assert find_tunings(store, PLACE) == {"d1": replace(FIRST, trials=16)}
    add_trials(store, PLACE, now, beaten="[1]")
    assert find_tunings(store, PLACE) == {"d1": replace(now, trials=24)}
    # The winner itself has the time of now.
    add_trials(store, PLACE, replace(now, found_ns=950), beaten="[2]")
    assert find_tunings(store, PLACE) == {"d1": replace(now, trials=32, found_ns=950)}


def test_the_first_schedule_that_runs_is_taken(store: CostStore) -> None:
    add_trials(store, PLACE, replace(FIRST, found="", found_ns=0))
    add_trials(store, PLACE, FIRST)
    assert find_tunings(store, PLACE)["d1"].found == "[1]"


def test_what_was_tuned_elsewhere_is_not_found(store: CostStore) -> None:
    add_trials(store, PLACE, FIRST)
    assert find_tunings(store, TunedPlace("llvm", "another cpu")) == {}
    assert find_tunings(store, TunedPlace("llvm -mcpu=haswell", "a cpu")) == {}


def test_what_is_kept_changes_the_digest_and_trials_do_not(store: CostStore) -> None:
    assert kept_digest(store) == ""
    add_trials(store, PLACE, FIRST)
    assert kept_digest(store) == ""
    keep_schedule(store, PLACE, "d1", "[1]", 1000, 800)
    kept = kept_digest(store)
    assert kept
    add_trials(store, PLACE, replace(FIRST, found="[2]", found_ns=10))
    assert kept_digest(store) == kept
    tuning = find_tunings(store, PLACE)["d1"]
    assert (tuning.found, tuning.kept, tuning.own_ns, tuning.kept_ns) == ("[2]", "[1]", 1000, 800)
    keep_schedule(store, PLACE, "d1", "[2]", 1000, 700)
    assert kept_digest(store) not in ("", kept)


def test_forgetting_leaves_nothing(store: CostStore) -> None:
    add_trials(store, PLACE, FIRST)
    assert count_tunings(store) == forget_tunings(store) == 1
    assert find_tunings(store, PLACE) == {}


def test_a_damaged_schedule_is_named(store: CostStore) -> None:
    add_trials(store, PLACE, FIRST)
    keep_schedule(store, PLACE, "d1", "no schedule", 1000, 800)
    with pytest.raises(CostStoreError, match=r"nn.dense float32\[1,2\] is damaged.*--tuned"):
        find_tunings(store, PLACE)


def test_a_store_of_before_tuning_gets_its_table(store: CostStore) -> None:
    path = store.path
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE tunings")
        connection.commit()
    with CostStore(path) as opened:
        add_trials(opened, PLACE, FIRST)
        assert count_tunings(opened) == 1


def test_searches_at_once_lose_no_trials(tmp_path: Path) -> None:
    path = tmp_path / "costs.sqlite"
    CostStore(path).close()

    def add(ns: int) -> None:
        with CostStore(path) as opened:
            for _ in range(10):
                add_trials(opened, PLACE, replace(FIRST, found=f"[{ns}]", found_ns=ns))

    threads = [threading.Thread(target=add, args=(ns,)) for ns in (300, 200, 400)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with CostStore(path) as opened:
        found = find_tunings(opened, PLACE)["d1"]
    assert (found.trials, found.found) == (240, "[200]")
