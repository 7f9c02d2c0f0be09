"""`heteroplace routes`: recordings and profiles from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from heteroplace.cli.environment import environment_json
from heteroplace.cli.main import main
from heteroplace.files.schemas import FOLDER
from heteroplace.parts.routing.dynamic.recorded_routes import read_profile


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recording, which is the current one."""
    monkeypatch.chdir(tmp_path)
    synthesise = ["routes", "synthesise", "a.jsonl", "--runs", "40", "--cells", "8"]
    assert main([*synthesise, "--branches", "4", "--coactivation", "0.5"]) == 0
    return tmp_path


def test_made_up_decisions_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["routes", "synthesise", "b.json", "--like", "a.jsonl", "--runs", "1"]) == 0
    assert capsys.readouterr().out == "b.json: profile of 2 routers in 1 run, cell by cell\n"
    assert len((folder / "a.jsonl").read_text().splitlines()) == 1 + 2 * 40


def test_a_recording_is_shown_as_its_profile(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["routes", "merge", "a.jsonl", "-o", "a.json"]) == 0
    capsys.readouterr()
    assert main(["routes", "show", "a.jsonl"]) == 0
    of_recording = capsys.readouterr().out
    assert main(["routes", "show", "a.json"]) == 0
    assert capsys.readouterr().out == of_recording
    assert main(["show", "a.json"]) == 0
    assert capsys.readouterr().out == of_recording
    first, _, head, row, _ = of_recording.splitlines()
    assert first == "model synthetic, 2 routers in 40 runs, cell by cell"
    assert head.split()[:4] == ["router", "cells", "branches", "runs"]
    assert row.split()[:4] == ["router.0", "8", "4", "40"]


def test_merged_files_add_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["routes", "synthesise", "b.json", "--like", "a.jsonl", "--seed", "1"]) == 0
    assert main(["routes", "merge", "a.jsonl", "b.json", "-o", "both.json", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.split("cell by cell\n")[-1])
    assert told == {
        "file": "both.json",
        "model": "synthetic",
        "routers": 2,
        "runs": 140,
        "transitions": 1,
        **environment_json(),
    }
    value = json.loads((folder / "both.json").read_text())
    jsonschema.validate(value, json.loads((FOLDER / "routes.schema.json").read_text()))


@pytest.mark.parametrize(
    ("sizes", "fault"),
    [
        (["--cells", "100000", "--branches", "1000"], "decides about 100000 cells"),
        (["--cells", "2", "--branches", "70000"], "has 70000 branches; at most 65536"),
    ],
)
def test_what_cannot_be_made_up_leaves_an_older_file(
    folder: Path, capsys: pytest.CaptureFixture[str], sizes: list[str], fault: str
) -> None:
    before = (folder / "a.jsonl").read_bytes()
    assert main(["routes", "synthesise", "a.jsonl", *sizes]) == 4
    assert fault in capsys.readouterr().err
    assert (folder / "a.jsonl").read_bytes() == before


def test_loads_alone_can_be_made_up(folder: Path) -> None:
    assert main(["routes", "synthesise", "b.jsonl", "--like", "a.jsonl", "--level", "1"]) == 0
    assert read_profile(folder / "b.jsonl").transitions == ()


def test_numbers_are_told_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["routes", "show", "a.jsonl", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["model"] == "synthetic"
    first = told["routers"][0]
    assert round(sum(first["mean_loads"]), 9) == 8
    assert first["hit_probability"] is not None


def test_good_files_are_checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["routes", "merge", "a.jsonl", "-o", "a.json"])
    capsys.readouterr()
    assert main(["routes", "check", "a.json", "--like", "a.jsonl"]) == 0
    assert main(["check", "a.json"]) == 0
    line = "a.json: 2 routers in 40 runs, cell by cell: no faults\n"
    assert capsys.readouterr().out == line + line


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["check", "none.json"], "none.json: cannot be read"),
        (["check", "b.json"], 'the key "profiled_routers" is missing'),
        (["check", "other.jsonl", "--like", "a.jsonl"], "profiles of one model with different"),
        (["merge", "a.jsonl", "-o", "no/where.json"], "folder 'no' does not exist"),
        (["synthesise", "c.json", "--like", "a.jsonl", "--cells", "3"], "--cells: --like says"),
        (["synthesise", "c.json", "--skew", "-1"], "skew must be in 0..10, got -1"),
    ],
)
def test_wrong_requests_end_with_code_2(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], fault: str
) -> None:
    (folder / "b.json").write_text('{"schema_version": 1}')
    main(["routes", "synthesise", "other.jsonl", "--runs", "1"])
    assert main(["routes", *arguments]) == 4
    assert fault in capsys.readouterr().err
    assert not (folder / "c.json").exists()
