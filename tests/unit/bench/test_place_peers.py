"""`benchmarks place --peers`: plain Python that makes valid plans, and the table of both."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import numpy as np
import pytest

from benchmarks.peers.plain_baechi import plain_favourites, plain_m_etf, plain_m_sct
from benchmarks.place import command as place
from benchmarks.place import peers as place_peers
from benchmarks.place.peers import peer_rows, peer_table
from heteroplace.errors import SolverError
from heteroplace.native.list import MeanGraph, evaluate_order, m_etf, mean_graph
from heteroplace.solve.baselines.m_sct_lp import favourite_children
from heteroplace.solve.problem import Problem
from tests.unit.solve.baselines.test_m_sct_lp import length
from zoo.graphs.catalogue import get_instance, layered, transformer
from zoo.graphs.layered import Layered
from zoo.graphs.transformer import Transformer

SMALL = Transformer("two-layers", 2, 64, 4, 1, 128)


def small() -> Problem:
    return transformer(SMALL, "inter", 0.1)


@pytest.mark.parametrize("schedule", [plain_m_etf, plain_m_sct])
def test_plain_python_makes_a_plan_that_fits(schedule: object) -> None:
    problem = small()
    found = schedule(problem, mean_graph(problem.native))  # type: ignore[operator]
    assert sorted(found.order) == list(range(SMALL.num_tasks))
    native_plan = evaluate_order(problem.native, found.placement, found.order)
    assert native_plan.violation == 0
    assert native_plan.makespan_ns > 0


def test_without_contention_and_gaps_both_m_etf_are_the_same() -> None:
    problem = get_instance("rwnn/er10x5").build()
    assert problem.cluster.congestion == "none"
    found = plain_m_etf(problem, mean_graph(problem.native))
    ours = m_etf(problem.native)
    assert place_peers.judged_ns(problem, found) == ours.makespan_ns


def test_the_whole_programme_finds_children_as_good_as_the_one_in_parts() -> None:
    mean = mean_graph(small().native)
    plain = plain_favourites(mean, 0.1)
    ours = {t: c for t, c in enumerate(favourite_children(mean, 0.1).tolist()) if c >= 0}
    assert len(set(plain.values())) == len(plain), "a child has one parent"
    # Equally good children are chosen at will: 83 of some 85 are the same ones.
    assert len(plain.items() & ours.items()) >= 0.95 * max(len(plain), len(ours))
    times = [longest_path(mean, children) for children in (plain, ours, {})]
    assert times[0] == times[1] < times[2] / 3


def longest_path(mean: MeanGraph, children: Mapping[int, int]) -> float:
    """Where transfers to favourite children take no time."""
    edges = zip(mean.src.tolist(), mean.dst.tolist(), strict=True)
    return length(mean, np.array([children.get(src) != dst for src, dst in edges]))


def test_plain_python_says_where_no_device_has_room() -> None:
    problem = layered(Layered(200), 1.0)
    with pytest.raises(SolverError, match="no device with room"):
        plain_m_etf(problem, mean_graph(problem.native))


def test_rows_compare_with_plain_python_and_quote_what_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = small()
    monkeypatch.setattr(place_peers, "get_instance", lambda _: Built(problem))
    rows = peer_rows(lambda _: None, ("two-layers",))
    assert [(row["solver"], row["peer"]) for row in rows] == [
        (solver, peer)
        for solver in ("m-etf", "m-sct")
        for peer in ("core", "solver", "plain Python")
    ]
    for row in rows:
        assert row["published_seconds"] is None, "this graph is not of the published size"
        assert (row["times_faster"] is None) == (row["peer"] == "plain Python")
    assert rows[0]["makespan"] == rows[1]["makespan"]
    text = peer_table(rows)
    assert text == place.table(rows)
    assert "m-etf 40 s, m-sct 122 s" in text


def test_peers_are_reached_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "peer_rows", lambda say: [{"peer": "core"}])
    parser = argparse.ArgumentParser()
    place.add_arguments(parser)
    assert place.run(parser.parse_args(["--peers"]), print) == [{"peer": "core"}]


class Built:
    """An instance that is already built."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def build(self) -> Problem:
        return self._problem
