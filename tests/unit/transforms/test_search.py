"""The search: grids, exclusion, processes, files, fronts."""

from dataclasses import replace

import pytest

from benchmarks.distir.machine import MachineFigures, machine_cluster
from heteroplace.costs.prediction.op_costs import OpCosts
from heteroplace.errors import MissingCostError, ShardingError, UnsupportedRelayError
from heteroplace.model.collectives import CollectiveCosts
from heteroplace.parts.parallel.transforms.degrees import Degrees, enumerate_degrees
from heteroplace.parts.parallel.transforms.mlp import Mlp
from heteroplace.parts.parallel.transforms.search import problem_digest, search
from heteroplace.parts.parallel.transforms.search_evaluator import SearchProblem
from heteroplace.parts.parallel.transforms.search_rows import (
    COLUMNS,
    EXCLUDED,
    REFUSED,
    STAGES,
    WHOLE,
    SearchRow,
    pareto_front,
    pure,
    ranked,
)

FIGURES = MachineFigures(10**12, 3 * 10**9, 10**9, 700, 900, 10**6)


def source(lanes, rows, batch):
    return Mlp(4, 64, rows, lanes).training(batch)


@pytest.fixture
def problem():
    cluster = machine_cluster(FIGURES, 4)
    return SearchProblem("mlp", source, cluster, OpCosts(cluster))


def test_all_degrees_of_each_batch_are_rows(problem):
    rows = search(problem, [16, 8])
    expected = [(batch, d) for batch in (8, 16) for d in enumerate_degrees(4, batch)]
    assert [(row.batch, row.degrees) for row in rows] == expected
    assert {row.method for row in rows} == {STAGES}


@pytest.mark.parametrize("batch", [2, 4, 64, 256, 4096])
def test_no_graph_is_made_of_rows_that_do_not_divide_its_batch(problem, batch):
    def strict(lanes, rows, whole):
        assert whole % rows == 0, f"{rows} rows are no part of a batch of {whole}"
        return source(lanes, rows, whole)

    rows = search(replace(problem, source=strict), [batch], allow_fewer=True)
    expected = search(problem, [batch], allow_fewer=True)
    assert rows == expected
    assert STAGES in {row.method for row in rows}


def test_a_network_that_mixes_rows_is_simulated_with_the_whole_batch_at_once(problem):
    def mixing(lanes, rows, whole):
        if rows != whole:
            raise UnsupportedRelayError("softmax along the rows")
        return source(lanes, rows, whole)

    rows = search(replace(problem, source=mixing), [8], allow_fewer=True)
    methods = {str(row.degrees): row.method for row in rows}
    assert {name for name, method in methods.items() if method != REFUSED} == {
        "1/1/1/1",
        "1/2/1/1",
        "1/4/1/1",
    }
    assert methods["1/1/1/1"] == methods["1/4/1/1"] == WHOLE


def test_what_does_not_fit_is_not_ranked(problem):
    rows = search(problem, [16])
    peaks = sorted(row.peak_bytes for row in rows)
    limit = peaks[len(peaks) // 2]
    cluster = machine_cluster(replace(FIGURES, memory_bytes=limit), 4)
    rows = search(replace(problem, cluster=cluster, costs=OpCosts(cluster)), [16])
    found = ranked(rows)
    assert 0 < len(found) < len(rows)
    assert all(row.peak_bytes <= limit for row in found)
    assert [row.makespan_ns for row in found] == sorted(row.makespan_ns for row in found)
    assert {row.fits for row in rows} == {True, False}


@pytest.mark.parametrize("keep", [1, 3])
def test_what_a_bound_excludes_is_not_among_the_best(problem, keep):
    batch = 64
    everything = search(problem, [batch])
    rows = search(problem, [batch], keep=keep)
    assert [row.degrees for row in rows] == [row.degrees for row in everything]
    assert ranked(rows)[:keep] == ranked(everything)[:keep]
    excluded = [row for row in rows if row.method == EXCLUDED]
    assert excluded
    slowest = ranked(everything)[keep - 1].makespan_ns
    assert all(row.bound_ns > slowest and row.makespan_ns is None for row in excluded)


def test_processes_make_the_same_rows(problem):
    serial = search(problem, [8, 16])
    assert search(problem, [8, 16], num_processes=3) == serial
    assert search(problem, [16], keep=2, num_processes=2) == search(problem, [16], keep=2)


def test_a_cost_that_is_missing_is_told_from_any_process(problem):
    cluster = machine_cluster(replace(FIGURES, flops_per_second=None), 4)
    unknown = replace(problem, cluster=cluster, costs=OpCosts(cluster))
    for num_processes in (1, 2):
        with pytest.raises(MissingCostError, match="no cost of"):
            search(unknown, [16], num_processes=num_processes)


def test_a_search_goes_on_where_it_was_ended(problem, tmp_path):
    path = tmp_path / "rows.csv"
    chosen = enumerate_degrees(4, 16)
    first = search(problem, [16], degrees=chosen[:5], path=path)
    added = []
    rows = search(problem, [16], path=path, say=added.append)
    assert rows == search(problem, [16])
    assert sorted(row.degrees for row in added) == sorted(chosen[5:])
    assert rows[:5] == first
    assert len(path.read_text().splitlines()) == 1 + len(chosen)
    assert search(problem, [16], path=path, say=pytest.fail) == rows


def test_a_line_that_was_not_finished_is_taken_away(problem, tmp_path):
    path = tmp_path / "rows.csv"
    rows = search(problem, [16], path=path, num_processes=2)
    text = path.read_text()
    path.write_text(text[:-7])
    assert search(problem, [16], path=path) == rows
    assert len(path.read_text().splitlines()) == len(text.splitlines())


@pytest.mark.parametrize("begun", ["", "case,ba", ",".join(COLUMNS)])
def test_a_header_that_was_not_finished_is_written_anew(problem, tmp_path, begun):
    path = tmp_path / "rows.csv"
    path.write_text(begun)
    rows = search(problem, [16], path=path)
    assert path.read_text().splitlines()[0] == ",".join(COLUMNS)
    assert search(problem, [16], path=path, say=pytest.fail) == rows


def test_of_lines_as_other_programs_end_them_none_is_lost(problem, tmp_path):
    path = tmp_path / "rows.csv"
    rows = search(problem, [16], path=path)
    whole = path.read_bytes().replace(b"\n", b"\r\n")
    path.write_bytes(whole + b"unfinished")
    assert search(problem, [16], path=path, say=pytest.fail) == rows
    assert path.read_bytes() == whole


def test_rows_of_other_problems_stand_in_the_same_file(problem, tmp_path):
    path = tmp_path / "rows.csv"
    other = replace(problem, schedule="gpipe")
    assert problem_digest(other) != problem_digest(problem)
    rows = search(problem, [16], path=path)
    others = search(other, [16], path=path)
    assert search(problem, [16], path=path, say=pytest.fail) == rows
    assert search(other, [16], path=path, say=pytest.fail) == others


def test_a_search_goes_on_with_collectives_that_were_timed_again(problem, tmp_path):
    path = tmp_path / "rows.csv"

    def timed(ns: float) -> CollectiveCosts:
        return CollectiveCosts((("all_gather", 2, 0.5, ns), ("all_reduce", 2, 1.0, 100.0)))

    first = replace(problem, collectives=timed(50.0))
    again = replace(problem, collectives=timed(51.0))
    other = replace(problem, collectives=CollectiveCosts((("all_reduce", 2, 1.0, 100.0),)))
    rows = search(first, [16], path=path)
    assert search(again, [16], path=path, say=pytest.fail) == rows
    assert len({problem_digest(each) for each in (problem, first, again, other)}) == 3


def test_a_better_one_that_was_excluded_before_is_simulated(problem, tmp_path):
    path = tmp_path / "rows.csv"
    search(problem, [64], path=path, keep=1)
    assert search(problem, [64], path=path) == search(problem, [64])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "the columns are a,b; expected case,batch"),
        (",".join(COLUMNS) + "\n{case},16,1/1/4/2,lost,0,0,0,0,0,0,0,1,,,\n", "line 2 is no row"),
        (",".join(COLUMNS) + "\n{case},16\n", "line 2 is no row"),
        ("a,b\n1,2", "the columns are a,b; expected case,batch"),
        ("my notes", "the columns are my notes; expected case,batch"),
        ("case,batch\r{case},16\r", "the columns are case,batch"),
        (",".join(COLUMNS) + "\n{case},16\nunfinished", "line 2 is no row"),
        (",".join(COLUMNS) + "\n" + "x" * 200_000 + "\n", "line 2: field larger than"),
    ],
    ids=[
        "columns",
        "method",
        "cells",
        "last line of others",
        "one line",
        "old Mac",
        "row before an unfinished one",
        "huge field",
    ],
)
def test_other_files_are_refused(problem, tmp_path, text, message):
    path = tmp_path / "rows.csv"
    path.write_text(text.format(case=problem_digest(problem)))
    before = path.read_bytes()
    with pytest.raises(ShardingError, match=message):
        search(problem, [16], path=path)
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_read_is_refused(problem, tmp_path):
    with pytest.raises(ShardingError, match="not a table of a search"):
        search(problem, [16], path=tmp_path)


def test_no_degrees_and_no_best_are_refused(problem):
    with pytest.raises(ShardingError, match="a batch of 0 rows cannot be cut for 4 devices"):
        search(problem, [0])
    with pytest.raises(ShardingError, match="the best 0 of a search"):
        search(problem, [16], keep=0)


def rows_of(*rows):
    """Of (data, tensor, pipeline, microbatches), a makespan and a peak; 100 bytes fit."""
    return [SearchRow(8, Degrees(*row[0]), STAGES, 0, *row[1:], 100) for row in rows]


def test_the_front_is_what_nothing_is_both_faster_and_smaller_than():
    front = pareto_front(
        rows_of(
            ((4, 1, 1, 1), 10, 90),
            ((2, 2, 1, 1), 12, 50),
            ((1, 4, 1, 1), 12, 50),
            ((1, 2, 2, 2), 13, 60),
            ((1, 1, 4, 2), 30, 20),
            ((1, 1, 4, 4), 5, 101),
        )
    )
    assert [each.makespan_ns for each in front] == [30, 12, 10]
    assert [each.degrees.tensor for each in front] == [1, 4, 1]


def test_the_best_of_each_kind_is_found():
    pipelines = [((1, 1, 4, 2), 30, 20), ((1, 1, 4, 4), 25, 20)]
    mixed, data, tensor = ((2, 2, 1, 1), 9, 50), ((4, 1, 1, 1), 10, 101), ((1, 4, 1, 1), 12, 50)
    best = pure(rows_of(data, mixed, tensor, *pipelines))
    assert best["data"] is None
    assert best["tensor"].makespan_ns == 12
    assert best["pipeline"].degrees.micro_batches == 4
