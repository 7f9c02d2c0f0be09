"""`heteroplace costs`, run in this process: tables, files, exit codes."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from heteroplace.cli.environment import environment_json
from heteroplace.cli.main import main
from heteroplace.costs.store import CostStore
from heteroplace.files.measurements import date_text
from tests.measurements import NOON, XEON, note, row

DAY_S = 86400
_NOW = time.time()
ROWS = [
    row(1, 41_300, date_text(_NOW - 3 * DAY_S), op="nn.conv2d+add+nn.relu"),
    row(2, 2_000_000, date_text(_NOW - 40 * DAY_S), op="nn.dense", threads=2),
    row(3, 999, date_text(_NOW - 3600 * 5), op="nn.dense", threads=2),
]
NOTES = [note(812.5, date_text(_NOW - 40 * DAY_S))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the default store in it, which is not there yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HETEROPLACE_COSTS", "costs.sqlite")
    return tmp_path


@pytest.fixture
def filled(folder: Path) -> Path:
    with CostStore("costs.sqlite") as store:
        store.add_many(ROWS, NOTES)
    return folder


def coded(text: str, code: str) -> str:
    """An error as it is printed."""
    return f"error: {text.rstrip()} [{code}]\n"


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What `heteroplace costs` prints to the stream for that exit code."""
    assert main(["costs", *arguments]) == code
    captured = capsys.readouterr()
    assert (captured.out if code else captured.err) == ""
    return captured.err if code else captured.out


def in_store() -> list[int]:
    with CostStore("costs.sqlite", is_made=False) as store:
        return sorted(int(key.kernel, 16) for key, _ in store.rows())


def test_list_shows_a_table_and_a_summary(filled, capsys) -> None:
    lines = run(capsys, "list").splitlines()
    assert lines[0] == f"all with target llvm skylake-avx512, device {XEON}, batch 1, mode hot:"
    assert re.split("  +", lines[2]) == [
        *("op", "shapes (float32)", "threads", "median", "spread", "samples", "age")
    ]
    assert [re.split("  +", line) for line in lines[3:6]] == [
        [op, f"[1,{number}] int8[7,{number}] -> [1,7]", threads, median, "+-10 ns", "20", age]
        for number, op, threads, median, age in (
            (1, "nn.conv2d+add+nn.relu", "1", "41.3 us", "3 d"),
            (2, "nn.dense", "2", "2.00 ms", "40 d"),
            (3, "nn.dense", "2", "999 ns", "5 h"),
        )
    ]
    assert lines[7].startswith(
        "3 measurements of 3 kernels on 1 device, ages 5 h to 40 d; 1 note on links and "
        "interference (--notes); costs.sqlite ("
    )


def test_list_shows_columns_that_differ_and_the_site_of_a_call_in_place(filled, capsys) -> None:
    with CostStore("costs.sqlite") as store:
        store.add(*row(4, device="NVIDIA A100", target="cuda -arch=sm_80", batch=8, site=17))
    lines = run(capsys, "list").splitlines()
    assert lines[0].split()[:5] == ["op", "shapes", "(float32)", "target", "device"]
    (line,) = [line for line in lines if "A100" in line]
    assert re.split("  +", line)[2:8] == ["cuda sm_80", "NVIDIA A100", "1", "8", "in place", "17"]


def test_list_of_notes(filled, capsys) -> None:
    lines = run(capsys, "list", "--notes").splitlines()
    assert re.split("  +", lines[1]) == ["link", "ram->gpu0", "latency", "812.5 ns", "40 d", XEON]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["--op", "nn.dense*"], [2, 3]),
        (["--older-than", "2d"], [1, 2]),
        (["--older-than", "2d", "--threads", "2"], [2]),
        (["--device", "*Xeon*", "--target", "llvm*", "--mode", "hot", "--batch", "1"], [1, 2, 3]),
        (["--mode", "in-place"], []),
        (["--network", "x"], []),
    ],
)
def test_filters_choose_what_is_listed_exported_and_forgotten(filled, capsys, filters, expected):
    listed = json.loads(run(capsys, "list", *filters, "--json"))
    assert [int(found["kernel"], 16) for found in listed["measurements"]] == expected
    if expected:
        assert json.loads(run(capsys, "export", "-", *filters)) == listed
    said = run(capsys, "forget", *filters, "--dry-run")
    plural = "" if len(expected) == 1 else "s"
    assert said == f"costs.sqlite: would remove {len(expected)} measurement{plural}\n"
    assert in_store() == [1, 2, 3]
    said = run(capsys, "forget", *filters)
    assert said == f"costs.sqlite: removed {len(expected)} measurement{plural}\n"
    assert in_store() == [number for number in (1, 2, 3) if number not in expected]


def test_an_empty_store_says_how_to_fill_it_and_is_not_made(folder, capsys) -> None:
    advice = "no kernel was measured yet; measure with: heteroplace profile MODEL --cluster FILE\n"
    assert run(capsys, "list") == f"costs.sqlite: {advice}"
    assert run(capsys, "export", "x.json", code=4) == coded(f"costs.sqlite: {advice}", "HP001")
    assert run(capsys, "forget", "--all") == "costs.sqlite: removed 0 measurements and 0 notes\n"
    assert json.loads(run(capsys, "list", "--json"))["measurements"] == []
    assert list(folder.iterdir()) == []


def test_filters_that_nothing_meets_say_so(filled, capsys) -> None:
    expected = "costs.sqlite: the filters meet none of its 3 measurements\n"
    assert run(capsys, "list", "--op", "x") == expected
    assert run(capsys, "export", "x.json", "--op", "x", code=4) == coded(expected, "HP001")
    assert not (filled / "x.json").exists()


def test_an_export_is_imported_into_another_store(filled, capsys) -> None:
    assert run(capsys, "export", "x.json") == "x.json: 3 measurements and 1 note\n"
    said = run(capsys, "import", "x.json", "--store", "other.sqlite")
    assert said == "other.sqlite: read 3 measurements and 1 note\n"
    with CostStore("other.sqlite") as store:
        assert list(store.rows()) == ROWS
        assert store.notes() == NOTES
    again = run(capsys, "export", "-", "--store", "other.sqlite")
    assert json.loads(again) == json.loads(Path("x.json").read_text())


def test_an_import_keeps_what_is_newer(filled, capsys) -> None:
    run(capsys, "export", "x.json")
    key, _ = ROWS[0]
    with CostStore("costs.sqlite") as store:
        store.add(key, row(1, 5, date_text(_NOW))[1])
    said = run(capsys, "import", "x.json")
    assert said == (
        "costs.sqlite: read 3 measurements and 1 note; 1 of them left out, the store has newer "
        "ones\n"
    )
    with CostStore("costs.sqlite") as store:
        found = store.find(key)
    assert found is not None
    assert found.wall_ns == 5


def test_an_import_with_faults_names_them_and_stores_nothing(filled, capsys) -> None:
    run(capsys, "export", "x.json")
    value = json.loads(Path("x.json").read_text())
    value["measurements"][0]["kernel"] = "new"
    value["measurements"][1]["wall_ns"] = -1
    value["measurements"][2]["mode"] = "warm"
    Path("x.json").write_text(json.dumps(value))
    said = run(capsys, "import", "x.json", code=4)
    assert said.startswith("error: x.json: 2 faults\n  $.measurements[1].wall_ns: expected a whole")
    assert "\n  $.measurements[2].mode: expected one of hot, cold, in place, got" in said
    assert in_store() == [1, 2, 3]


def test_export_writes_all_or_nothing(filled, capsys) -> None:
    said = run(capsys, "export", "no/x.json", code=4)
    assert said == coded("no/x.json: folder 'no' does not exist; make it first\n", "HP001")
    Path("x.json").write_text("old")
    run(capsys, "export", "x.json")
    assert {path.name for path in filled.iterdir()} == {"costs.sqlite", "x.json"}


def test_forget_needs_a_filter_or_all(filled, capsys) -> None:
    assert run(capsys, "forget", code=4).startswith("error: forget: give a filter, such as --op")
    said = run(capsys, "forget", "--all", "--op", "*", code=4)
    assert said.startswith("error: forget: --all removes everything; leave it out, or the filters")
    assert in_store() == [1, 2, 3]
    said = run(capsys, "forget", "--all", "--dry-run")
    assert said == "costs.sqlite: would remove 3 measurements and 1 note\n"
    said = run(capsys, "forget", "--all")
    assert said == "costs.sqlite: removed 3 measurements and 1 note\n"
    with CostStore("costs.sqlite") as store:
        assert (len(store), store.notes()) == (0, [])


@pytest.mark.parametrize("action", ["list", "export", "forget"])
def test_a_store_that_was_named_and_is_not_there_is_an_error(folder, capsys, action) -> None:
    arguments = {"list": [], "export": ["x.json"], "forget": ["--all"]}[action]
    said = run(capsys, action, *arguments, "--store", "x.sqlite", code=4)
    assert said.startswith("error: x.sqlite: there is no store of costs here")
    assert list(folder.iterdir()) == []


def test_a_file_that_is_no_store_is_an_error_and_stays(folder, capsys) -> None:
    Path("costs.sqlite").write_text("x" * 500)
    Path("x.json").write_text(json.dumps({"schema_version": 1, "measurements": []}))
    for arguments in (["list"], ["forget", "--all"], ["import", "x.json"]):
        assert "costs.sqlite: is no SQLite file" in run(capsys, *arguments, code=4)
    assert Path("costs.sqlite").read_text() == "x" * 500


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--older-than", "30", "expected an age such as 30d or 12h (units: s, min, h, d, w), got"),
        ("--older-than", "9999999w", "expected an age since 1970"),
        ("--batch", "0", "expected a whole number >= 1, got '0'"),
        ("--threads", "two", "expected a whole number >= 1, got 'two'"),
        ("--mode", "warm", "invalid choice: 'warm'"),
    ],
)
def test_wrong_filters_are_wrong_usage(folder, capsys, option, value, message) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["costs", "list", option, value])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_measurement_from_the_future_is_shown_as_such(folder, capsys) -> None:
    with CostStore("costs.sqlite") as store:
        store.add(*row(1, measured_at=date_text(_NOW + 9 * DAY_S)))
        store.add(*row(2, measured_at=NOON))
    assert "in the future" in run(capsys, "list")


def test_every_action_prints_json(filled, capsys) -> None:
    counted = {"measurements": 3, "notes": 1}
    environment = environment_json()
    told = json.loads(run(capsys, "export", "x.json", "--json"))
    assert told == {"file": "x.json", **counted, **environment}
    told = json.loads(run(capsys, "import", "x.json", "--store", "other.sqlite", "--json"))
    assert told == {"store": "other.sqlite", **counted, "older": 0, **environment}
    told = json.loads(run(capsys, "forget", "--all", "--json"))
    assert told == {"store": "costs.sqlite", **counted, "dry_run": False, **environment}
    names = [device["name"] for device in json.loads(run(capsys, "devices", "--json"))]
    assert "A100" in " ".join(names)
