"""Recordings and profiles: counts, files, faults, and that profiles add up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given

from heteroplace.errors import RoutingError
from heteroplace.files.route_profile_file import (
    load_route_profile,
    route_profile_from_json,
    route_profile_to_json,
    save_route_profile,
)
from heteroplace.files.routes_file import RoutesReader, RoutesWriter, header_line
from heteroplace.model.routed.route_profile import RouteProfile, RouteRecord, RouterShape
from heteroplace.parts.routing.dynamic.recorded_routes import (
    ProfileBuilder,
    merge_profiles,
    read_profile,
)
from tests.corpus import corpus
from tests.strategies import exact_cases

SHAPES = (RouterShape("a", 3, 2), RouterShape("early", 1, 2), RouterShape("b", 3, 3))
RUNS = (
    RouteRecord(0, "a", (2, 1), ((0,), (0,), (1,))),
    RouteRecord(0, "early", (1, 0), ((0,),)),
    RouteRecord(0, "b", (1, 1, 1), ((0, 2), (1,), ())),
    RouteRecord(1, "a", (0, 3), ((1,), (1,), (1,))),
    RouteRecord(1, "early", (1, 0), ((0,),)),
    RouteRecord(1, "b", (3, 0, 0), ((0,), (0,), (0,))),
)


def profile_of(records: tuple[RouteRecord, ...], digest: str = "m") -> RouteProfile:
    builder = ProfileBuilder(digest, SHAPES)
    for record in records:
        builder.add(record)
    return builder.profile()


@corpus
def recordings(random: Random) -> tuple[RouteRecord, ...]:
    """Some runs, of either level."""
    found = []
    for run in range(random.randint(1, 3)):
        level = random.randint(1, 2)
        for shape in SHAPES:
            cells = tuple(
                tuple(sorted(random.sample(range(shape.num_branches), random.randint(0, 2))))
                for _ in range(shape.num_cells)
            )
            loads = tuple(
                sum(branch in taken for taken in cells) for branch in range(shape.num_branches)
            )
            found.append(RouteRecord(run, shape.name, loads, cells).at_level(level))
    return tuple(found)


def test_decisions_are_counted() -> None:
    profile = profile_of(RUNS)
    a, early, b = profile.routers
    assert a.loads == (((0, 1), (2, 1)), ((1, 1), (3, 1)))
    assert a.active_sets == (((0, 1), 1), ((1,), 1))
    assert (a.mean_load(0), a.max_load(1), a.total_load(1), a.activation(0)) == (1.0, 3, 4, 0.5)
    assert a.load_pmf(0) == ((0, 0.5), (2, 0.5))
    assert (early.set_probability([0]), early.set_probability([1])) == (1.0, 0.0)
    assert b.num_runs == 2


def test_cells_go_from_a_router_to_the_next_as_large() -> None:
    """A cell that takes two branches counts half for each, one that is dropped for none."""
    (transition,) = profile_of(RUNS).transitions
    assert (transition.src, transition.dst, transition.num_runs) == ("a", "b", 2)
    assert transition.counts == ((0, 0, 2, 1), (0, 1, 1, 1), (0, 2, 2, 1), (1, 0, 1, 3))
    assert transition.cells_per_run() == {(0, 0): 0.25, (0, 1): 0.5, (0, 2): 0.25, (1, 0): 1.5}


def test_loads_alone_say_nothing_about_cells() -> None:
    profile = profile_of(tuple(record.at_level(1) for record in RUNS))
    assert profile.transitions == ()
    assert profile.routers == profile_of(RUNS).routers


@given(recordings(), recordings())
@exact_cases(40)
def test_merged_profiles_are_the_profile_of_both(
    one: tuple[RouteRecord, ...], other: tuple[RouteRecord, ...]
) -> None:
    later = tuple(RouteRecord(r.run + 10, r.router, r.loads, r.cells) for r in other)
    merged = merge_profiles([profile_of(one), profile_of(other)])
    assert merged == profile_of(one + later)
    assert merge_profiles([profile_of(other), profile_of(one)]) == merged


@given(recordings())
@exact_cases(40)
def test_profile_is_read_as_it_was_written(records: tuple[RouteRecord, ...]) -> None:
    profile = profile_of(records)
    assert (
        route_profile_from_json(json.loads(json.dumps(route_profile_to_json(profile)))) == profile
    )


def test_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "routes.jsonl"
    with RoutesWriter(path, "m", 2, SHAPES) as writer:
        for record in RUNS:
            writer.write(record)
    reader = RoutesReader(path)
    assert (reader.model_digest, reader.level, reader.routers) == ("m", 2, SHAPES)
    assert tuple(reader.records()) == RUNS
    assert read_profile(path) == profile_of(RUNS)


def test_recording_of_loads_leaves_cells_out(tmp_path: Path) -> None:
    path = tmp_path / "routes.jsonl"
    with RoutesWriter(path, "m", 1, SHAPES) as writer:
        writer.write(RUNS[0])
    assert list(RoutesReader(path).records()) == [RUNS[0].at_level(1)]
    assert path.read_text().startswith(header_line("m", 1, SHAPES))


def test_profile_file_is_read_by_either_name(tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    save_route_profile(profile_of(RUNS), path)
    assert load_route_profile(path) == read_profile(path) == profile_of(RUNS)


WRONG_LINES = [
    ('{"run":0,"router":"A","loads":[2,1],"active":[0,1]}', 'no router is called "A"'),
    ('{"run":-1,"router":"a","loads":[2,1],"active":[0,1]}', "expected a number >= 0, got -1"),
    ('{"run":0,"router":"a","loads":[2],"active":[0]}', "expected 2 of router 'a', got 1"),
    ('{"run":0,"router":"a","loads":[4,0],"active":[0]}', r"numbers in 0\.\.3"),
    ('{"run":0,"router":"a","loads":[2,1],"active":[0,1]}', "one entry per cell at level 2"),
    (
        '{"run":0,"router":"a","loads":[2,1],"active":[0],"cells":[0,0,1]}',
        r"branches with cells \[0, 1\], got \[0\]",
    ),
    (
        '{"run":0,"router":"a","loads":[1,1],"active":[0,1],"cells":[0,0,1]}',
        r"at least \[2, 1\] by the cells",
    ),
    (
        '{"run":0,"router":"a","loads":[2,1],"active":[0,1],"cells":[0,0,2]}',
        r"a branch in 0\.\.1, or -1 for none, got 2",
    ),
    (
        '{"run":0,"router":"a","loads":[2,1],"active":[0,1],"cells":[0,0,-2]}',
        r"a branch in 0\.\.1, or -1 for none, got -2",
    ),
    (
        '{"run":0,"router":"a","loads":[2,1],"active":[0,1],"cells":[0,0]}',
        "expected 3 of router 'a', got 2",
    ),
    (
        '{"run":0,"router":"a","loads":[2,1],"active":[0,1],"cells":[[0,0],0,1]}',
        "names a branch twice",
    ),
    (
        '{"run":0,"run":0,"router":"a","loads":[2,1],"active":[0,1],"cells":[0,0,1]}',
        'the key "run" occurs twice',
    ),
    (
        '{"run":0,"cells":[1,1,1],"router":"\\u0061","loads":[2,1],"active":[0,1],"cells":[0,0,1]}',
        'the key "cells" occurs twice',
    ),
    ("no json", "line 2"),
    ('{"run":0,"router":"a","loads":[2,1]}', "active"),
    ('{"run":0,"router":"a","loads":[2,1],"active":[0,1],"more":1}', "unknown field `more`"),
]


@pytest.mark.parametrize(("line", "fault"), WRONG_LINES)
def test_wrong_records_are_told_by_line(tmp_path: Path, line: str, fault: str) -> None:
    path = tmp_path / "routes.jsonl"
    path.write_text(header_line("m", 2, SHAPES) + line + "\n")
    with pytest.raises(RoutingError, match=f"line 2: .*{fault}" if "line" not in fault else fault):
        read_profile(path)


def test_names_with_colons_hide_no_key_that_occurs_twice(tmp_path: Path) -> None:
    path = tmp_path / "routes.jsonl"
    with RoutesWriter(path, "m", 1, [RouterShape("a:b", 3, 2)]) as writer:
        for run in range(2):
            writer.write(RouteRecord(run, "a:b", (2, 1)))
    assert len(list(RoutesReader(path).records())) == 2
    text = path.read_text()
    path.write_text(text.replace('"run":1', '"run":1,"run":1'))
    with pytest.raises(RoutingError, match='line 3: the key "run" occurs twice'):
        read_profile(path)
    # A key that stands there once, with nothing in it, is none too many.
    path.write_text(text.replace('"active":[0,1]}', '"active":[0,1],"cells":null}'))
    assert path.read_text() != text
    assert len(list(RoutesReader(path).records())) == 2


def test_bytes_that_are_no_text_are_told_wherever_they_are(tmp_path: Path) -> None:
    path = tmp_path / "routes.jsonl"
    with RoutesWriter(path, "m", 1, SHAPES) as writer:
        for run in range(500):
            writer.write(RouteRecord(run, "a", (2, 1)))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:400], lines[400].replace(b'"a"', b'"\xff"'), *lines[401:]]))
    with pytest.raises(RoutingError, match=r"(?i)a fault\n  line 401: .*utf-8"):
        read_profile(path)
    path.write_bytes(b"".join([lines[0].replace(b'"m"', b'"\xff"'), *lines[1:]]))
    with pytest.raises(RoutingError, match="is no text"):
        read_profile(path)


def test_a_recording_that_cannot_be_read_to_its_end_is_told(tmp_path: Path) -> None:
    path = tmp_path / "routes.jsonl"
    with RoutesWriter(path, "m", 2, SHAPES) as writer:
        writer.write(RUNS[0])
    reader = RoutesReader(path)
    path.unlink()
    path.symlink_to("/proc/self/mem")  # It is opened, and cannot be read.
    with pytest.raises(RoutingError, match="cannot be read: Input/output error"):
        list(reader.records())


def test_all_wrong_records_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "routes.jsonl"
    path.write_text(header_line("m", 2, SHAPES) + "".join(f"{line}\n" for line, _ in WRONG_LINES))
    with pytest.raises(RoutingError, match=f"{len(WRONG_LINES)} faults"):
        read_profile(path)


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        ('{"routes_version":2,"model":"m","level":1,"routers":[]}', "is of version 2"),
        ('{"routes_version":1,"model":"m","level":3,"routers":[]}', "one of 1, 2"),
        ('"routes_version"', "expected an object"),
        (
            '{"routes_version":1,"model":"m","level":1,"routers":['
            '{"name":"a","cells":1,"branches":1000000}]}',
            "expected a whole number >= 1 and <= 65536, got 1000000",
        ),
        ('{"routes_version":1,"level":1}', 'the key "model" is missing'),
        ('{"routes_version" 1}', "got no JSON"),
        (
            '{"routes_version":1,"model":"m","level":1,"routers":['
            '{"name":"a","cells":1,"branches":1},{"name":"a","cells":1,"branches":2}]}',
            "occurs twice",
        ),
    ],
)
def test_wrong_headers_are_refused(tmp_path: Path, header: str, fault: str) -> None:
    path = tmp_path / "routes.jsonl"
    path.write_text(header + "\n")
    with pytest.raises(RoutingError, match=fault):
        read_profile(path)


def test_a_router_that_decides_twice_in_a_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "routes.jsonl"
    with RoutesWriter(path, "m", 2, SHAPES) as writer:
        writer.write(RUNS[0])
        writer.write(RUNS[0])
    with pytest.raises(RoutingError, match="run 0: router 'a' decides twice"):
        read_profile(path)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (5, 3, 9)])
def test_a_run_that_is_complete_does_not_begin_anew(order: tuple[int, ...]) -> None:
    builder = ProfileBuilder("m", SHAPES)
    whole = [replace(record, run=run) for run in order for record in RUNS[:3]]
    for record in whole:
        builder.add(record)
    for record in whole:
        with pytest.raises(
            RoutingError, match=f"run {record.run}: router .* decides twice or 1024"
        ):
            builder.add(record)
    assert builder.profile().router("a").num_runs == 3
    builder.add(replace(RUNS[0], run=4))


def test_the_oldest_of_many_runs_without_all_decisions_is_over() -> None:
    """As where a router in a branch is not reached."""
    builder = ProfileBuilder("m", SHAPES)
    for run in range(1025):
        builder.add(replace(RUNS[0], run=run))
    builder.add(replace(RUNS[1], run=1))
    with pytest.raises(
        RoutingError, match="run 0: router 'early' decides twice or 1024 runs later"
    ):
        builder.add(RUNS[1])


def test_records_of_another_router_are_refused() -> None:
    builder = ProfileBuilder("m", SHAPES)
    with pytest.raises(RoutingError, match="no router 'c' of 2 branches; it has 'a' of 2"):
        builder.add(RouteRecord(0, "c", (0, 0)))


def test_a_profile_of_another_model_is_refused() -> None:
    profile = profile_of(RUNS)
    profile.check_model("m")
    with pytest.raises(RoutingError, match="of a model with digest m, this one has other"):
        profile.check_model("other")
    with pytest.raises(RoutingError, match="digest other, this one has m"):
        merge_profiles([profile, profile_of(RUNS, "other")])


def test_profiles_of_other_routers_do_not_add_up() -> None:
    fewer = RouteProfile("m", profile_of(RUNS).routers[:1])
    with pytest.raises(RoutingError, match=r"with different routers: 'a' \(3 cells, 2 branches"):
        merge_profiles([profile_of(RUNS), fewer])


def changed(path: tuple[str | int, ...], value: object) -> object:
    """The profile of RUNS as JSON with one value changed."""
    found = json.loads(json.dumps(route_profile_to_json(profile_of(RUNS))))
    place = found
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return found


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("schema_version",), 2, "is of version 2"),
        (("profiled_routers", 0, "name"), "b", '"b" occurs twice'),
        (("profiled_routers", 0, "runs"), 3, "counts of 2 runs in all, the router has 3"),
        (("profiled_routers", 0, "loads"), [[]], "expected 2 histograms"),
        (("profiled_routers", 0, "loads", 0), [[2, 1], [0, 1]], "ascending"),
        (("profiled_routers", 0, "loads", 0), [[0, 1], [4, 1]], "at most 3 cells"),
        (("profiled_routers", 0, "loads", 0), [[1, 2]], "load 0 in 0 runs"),
        (("profiled_routers", 0, "active_sets", 0, "branches"), [2], "branches below 2"),
        (("profiled_routers", 0, "active_sets", 0, "branches"), [1, 0], "ascending"),
        (("transitions", 0, "from"), "x", 'no router is called "x"'),
        (("transitions", 0, "to"), "early", "not the next router of as many cells"),
        (("transitions", 0, "cells", 3), [2, 0, 1, 1], "branches that the two routers have"),
        (("transitions", 0, "cells", 0), [0, 0, 0, 1], "branches that the two routers have"),
        (
            ("transitions", 0, "cells", 0),
            [0, 0, 1, 0],
            r"cells\[0\]\[3\]: expected a whole number >= 1",
        ),
    ],
)
def test_wrong_profiles_are_refused(path: tuple[str | int, ...], value: object, fault: str) -> None:
    with pytest.raises(RoutingError, match=fault) as raised:
        route_profile_from_json(changed(path, value))
    assert "$." in str(raised.value)


def test_a_wrong_count_is_told_once_and_with_all_others() -> None:
    value: Any = changed(("profiled_routers", 0, "active_sets", 0, "runs"), 5)
    with pytest.raises(RoutingError) as fault:
        route_profile_from_json(value)
    assert str(fault.value).count("counts of 6 runs") == 1
    assert str(fault.value).startswith("profile: 3 faults")


def test_histograms_that_cannot_be_read_are_all_told() -> None:
    value: Any = changed(("profiled_routers", 0, "runs"), -1)
    value["profiled_routers"][1]["loads"] = [None, [[1]]]
    with pytest.raises(RoutingError) as fault:
        route_profile_from_json(value)
    assert str(fault.value).splitlines() == [
        "profile: 3 faults",
        "  $.profiled_routers[0].runs: expected a whole number >= 0, got -1",
        "  $.profiled_routers[1].loads[0]: expected a list, got null",
        "  $.profiled_routers[1].loads[1][0]: expected a list of 2, got [1]",
    ]


def test_two_transitions_of_one_pair_are_refused() -> None:
    value = route_profile_to_json(profile_of(RUNS))
    value["transitions"] = [*value["transitions"], *value["transitions"]]  # type: ignore[misc]
    with pytest.raises(RoutingError, match="occurs twice"):
        route_profile_from_json(json.loads(json.dumps(value)))


def test_unreadable_files_are_told(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path, "nul\0"):
        with pytest.raises(RoutingError, match="cannot be read"):
            read_profile(path)
