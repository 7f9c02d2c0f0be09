"""Measurements as JSON: all comes back, and all faults of a file are named at once."""

from __future__ import annotations

import json
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from heteroplace.costs.store_file import load_rows, rows_from_json, rows_to_json
from heteroplace.errors import CostStoreError
from heteroplace.files.reader import write_json
from tests.measurements import note, row
from tests.random_measurements import notes, unique_rows
from tests.strategies import exact_cases

VALIDATOR = Draft202012Validator(
    json.loads(
        (resources.files("heteroplace") / "schemas/measurements.schema.json").read_text("utf-8")
    )
)


def small(**changes):
    """A small good file, with top-level keys replaced."""
    return {**json.loads(json.dumps(rows_to_json([row(1), row(2, site=3)], [note()]))), **changes}


@exact_cases(50)
@given(unique_rows, st.lists(notes, max_size=3))
def test_every_row_and_note_comes_back(some, some_notes) -> None:
    text = json.dumps(rows_to_json(some, some_notes), allow_nan=False)
    assert rows_from_json(json.loads(text)) == (some, some_notes)
    assert VALIDATOR.is_valid(json.loads(text))


def test_a_file_comes_back(tmp_path) -> None:
    write_json(small(), tmp_path / "costs.json")
    assert load_rows(tmp_path / "costs.json") == ([row(1), row(2, site=3)], [note()])


def test_notes_may_be_left_out() -> None:
    value = small()
    del value["notes"]
    assert rows_from_json(value) == ([row(1), row(2, site=3)], [])


def test_all_faults_are_named_with_their_paths() -> None:
    value = small()
    first, second = value["measurements"]
    del first["kernel"]
    first.update(wall_ns=-4, treads=2, hop_ns="fast")
    del first["threads"]
    second.update(mode="warm", measured_at="yesterday", network="", site=-1)
    value["notes"][0]["value"] = None
    with pytest.raises(CostStoreError) as caught:
        rows_from_json(value, "x.json")
    message = str(caught.value)
    assert message.startswith("x.json: 8 faults\n")
    for line in (
        '$.measurements[0]: the key "kernel" is missing',
        '$.measurements[0]: the key "threads" is missing',
        '$.measurements[0]: unknown key "treads"; did you mean "threads"?',
        "$.measurements[0].wall_ns: expected a whole number >= 0, got -4",
        '$.measurements[0].hop_ns: expected a whole number >= 0, got "fast"',
        '$.measurements[1].mode: expected one of hot, cold, in place, got "warm"',
        '$.measurements[1].measured_at: expected a date and time in UTC such as "2026-01-31T12:00',
        "$.notes[0].value: expected a finite number, got null",
    ):
        assert f"\n  {line}" in message


def test_conditions_of_a_schema_without_a_type_are_told() -> None:
    value = small()
    value["measurements"][1].update(mode="in place", network="", site=-1, wall_ns=-1)
    with pytest.raises(CostStoreError) as caught:
        rows_from_json(value, "x.json")
    assert str(caught.value).splitlines() == [
        "x.json: 3 faults",
        '  $.measurements[1].network: expected a name (text that is not empty), got ""',
        "  $.measurements[1].site: expected a whole number >= 0, got -1",
        "  $.measurements[1].wall_ns: expected a whole number >= 0, got -1",
    ]


def test_all_faults_that_no_schema_can_name_are_named_with_their_paths() -> None:
    value = small()
    first, second = value["measurements"]
    first.update(op="a\nb", measured_at="2026-02-30T12:00:00Z")
    second.update(mode="hot")
    value["notes"][0]["unit"] = "\x1b[31m"
    with pytest.raises(CostStoreError) as caught:
        rows_from_json(value, "x.json")
    assert str(caught.value).splitlines() == [
        "x.json: 4 faults",
        "  $.measurements[0].op: expected text of printable characters that is not empty, got "
        '"a\\nb"',
        "  $.measurements[0].measured_at: expected a date and time in UTC such as "
        '"2026-01-31T12:00:00+00:00", got "2026-02-30T12:00:00Z"',
        '  $.notes[0].unit: expected text of printable characters, got "\\u001b[31m"',
        "  $.measurements[1]: expected no network and site -1 with the mode 'hot', "
        'got "d1" and 3',
    ]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], r"\$: expected an object, got \[\]"),
        ({}, r'\$: the key "schema_version" is missing\n  \$: the key "measurements" is missing'),
        (small(schema_version=2), r"\$\.schema_version: this file is of version 2, and hetero"),
        (small(measurements={}), r"\$\.measurements: expected a list, got {}"),
        (small(measurements=[3]), r"\$\.measurements\[0\]: expected an object, got 3"),
        (small(costs=[]), r'\$: unknown key "costs"'),
    ],
)
def test_what_is_no_export_is_refused(value, message) -> None:
    with pytest.raises(CostStoreError, match=message):
        rows_from_json(value)
    assert not VALIDATOR.is_valid(value)


@pytest.mark.parametrize(
    ("index", "changes"),
    [
        *((0, {name: None}) for name in small()["measurements"][0] if name != "hop_ns"),
        *((0, {name: -2}) for name in ("threads", "site", "wall_ns", "flops", "hop_ns")),
        (0, {"wall_ns": 2**63}),
        (0, {"num_samples": 0}),
        (0, {"op": ""}),
        (0, {"mode": "in place"}),
        (0, {"network": "d"}),
        (0, {"site": 0}),
        (1, {"site": -1}),
        (1, {"network": ""}),
        (1, {"others_cores": -0.5}),
        (1, {"measured_at": "2026-01-31"}),
        (1, {"colour": "red"}),
    ],
)
def test_reader_and_schema_refuse_the_same(index, changes) -> None:
    value = small()
    value["measurements"][index].update(changes)
    with pytest.raises(CostStoreError, match=rf"\$\.measurements\[{index}\]"):
        rows_from_json(value)
    assert not VALIDATOR.is_valid(value)
