"""`benchmarks distir`: the published tables agree with themselves, and our winners with them."""

import json
from dataclasses import replace

import pytest

from benchmarks.command import main
from benchmarks.distir import command, grids
from benchmarks.distir.grids import (
    Grid,
    compare,
    grid_batches,
    resident_bytes,
    run_grid,
    search_problem,
)
from benchmarks.distir.machine import MachineFigures, machine_cluster, machine_collectives
from benchmarks.distir.published import (
    GPT2_BEST,
    INFERENCE_BATCHES,
    MLP_BEST,
    MODELS,
    NUM_DEVICES,
    published_model,
)
from benchmarks.distir.table import fronts, grid_table
from benchmarks.plots import plot_fronts
from heteroplace.errors import HeteroPlaceError
from heteroplace.parts.parallel.transforms.degrees import Degrees, enumerate_degrees
from heteroplace.parts.parallel.transforms.search_evaluator import Evaluator
from heteroplace.parts.parallel.transforms.search_rows import STAGES, SearchRow, ranked
from heteroplace.stats import rank_correlation_p

KEYS = [
    *("model", "mode", "batch", "D", "T", "P", "K", "schedule", "zero", "recompute"),
    *("simulated_ms", "measured_ms", "predicted_peak_bytes", "measured_peak_bytes", "fits"),
    *("published", "place", "grid_s", "bubble", "communication"),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_published_times_add_up(model):
    assert model.total_minutes == max(model.simulated_minutes, 0) + 10 * model.trial_minutes
    if model.is_training:
        assert 2 * model.layers * model.width**2 / 1e9 == pytest.approx(model.gigabytes, rel=0.03)


def test_grids_have_the_published_numbers_of_configurations():
    counts = [len(enumerate_degrees(NUM_DEVICES, batch)) for batch in INFERENCE_BATCHES]
    assert counts == [65, 71, 74, *[75] * 11]
    assert sum(counts) == 1035
    assert {model.grid for model in MODELS} == {75, 1035}


def test_published_bests_are_of_the_grids():
    assert (len(MLP_BEST), len(GPT2_BEST)) == (27, 3)
    for best in (*MLP_BEST, *GPT2_BEST):
        degrees = best.degrees
        assert degrees in enumerate_degrees(NUM_DEVICES, best.batch)
        assert best.batch in grid_batches(published_model(best.model))


@pytest.mark.parametrize(
    ("rho", "number", "bound", "expected"),
    [
        (0.97, 94, 1e-56, 2.7e-58),
        (0.98, 94, 1e-62, 2.6e-66),
        (0.94, 75, 1e-34, 8.0e-36),
        (0.84, 78, 1e-21, 7.1e-22),
    ],
)
def test_printed_significance_follows_from_printed_correlations(rho, number, bound, expected):
    assert rank_correlation_p(rho, number) == pytest.approx(expected, rel=0.02)
    assert rank_correlation_p(rho, number) < bound
    assert any((m.spearman, m.configurations, m.p_below) == (rho, number, bound) for m in MODELS)


def test_one_printed_significance_is_of_a_correlation_before_rounding():
    assert rank_correlation_p(0.99, 71) == pytest.approx(2.0e-60, rel=0.03)
    assert rank_correlation_p(0.992, 71) < 1e-63
    with pytest.raises(ValueError, match="expected one in"):
        rank_correlation_p(1.0, 71)


def test_all_reduces_of_the_machine_take_a_time_per_member_and_a_ring():
    figures = MachineFigures(link_bytes_per_second=10**9, exchange_ns=500)
    fitted = machine_collectives(figures, 8)
    assert fitted.ns("all_reduce", 4, 10**6) == 4 * 500 + 1_500_000
    assert fitted.ns("all_reduce", 16, 10**6) is None
    assert len(machine_cluster(figures, 8).links) == 56


def test_published_bests_of_the_small_perceptron():
    """Of all 27 rows: `test_published_bests_of_all_perceptrons`, which is slow."""
    grid = run_grid(published_model("MLP 1B"), MachineFigures())
    assert len(grid.rows) == sum(len(enumerate_degrees(16, b)) for b in grid_batches(grid.model))
    assert {row.method for row in grid.rows} == {STAGES}
    found = compare([grid])
    assert [each.place for each in found].count(1) == 9
    assert all(each.place in (1, 2) for each in found)
    assert max(each.over_best for each in found) < 1.07
    assert "The paper's D/T/P is our first in 9 of 12 rows" in grid_table([grid], found)


@pytest.mark.slow
def test_published_bests_of_all_perceptrons():
    models = [model for model in MODELS if model.is_training]
    found = compare([run_grid(model, MachineFigures()) for model in models])
    assert len(found) == 27
    assert [each.place for each in found].count(1) >= 22
    assert all(each.place in (1, 2) for each in found)
    small = MachineFigures(memory_bytes=32 * 10**9)
    found = compare([run_grid(model, small) for model in models])
    (misfit,) = [each.published for each in found if each.place is None]
    assert (misfit.model, misfit.batch) == ("MLP 103B", 1024)


@pytest.mark.slow
def test_published_bests_of_gpt2():
    found = []
    for best in GPT2_BEST:
        model = published_model(best.model)
        found += compare([run_grid(model, MachineFigures(), [best.batch])])
    assert [each.place for each in found] == [1, 1, 2]
    assert max(each.over_best for each in found) < 1.10


def test_what_a_framework_holds_is_weights_gradients_and_all_activations():
    model = published_model("MLP 103B")
    row = SearchRow(1024, Degrees(1, 16, 1, 1), STAGES, 0, 1, 1, 2**35)
    weights = 4 * 96 * 32768**2 // 16
    activations = 4 * 1024 * 32768 * (48 + 48 // 16)
    assert resident_bytes(model, row) == weights + activations
    assert 32 * 10**9 < weights + activations < 32 * 2**30
    two_stages = SearchRow(1024, Degrees(1, 8, 2, 4), STAGES, 0, 1, 1, 2**35)
    kept = 2 * 4 * 256 * 32768 * (24 + 24 // 8)
    assert resident_bytes(model, two_stages) == 4 * 48 * 32768**2 // 8 + kept
    assert resident_bytes(published_model("GPT-2 13B"), row) == 0


def test_rows_are_written(tmp_path, capsys):
    path, table = tmp_path / "rows.json", tmp_path / "rows.csv"
    arguments = ["distir", "--only", "^MLP 1B$", "--batches", "128", "--json", str(path)]
    assert main([*arguments, "--rows", str(table), "--processes", "2"]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) == 65
    assert all(list(row) == KEYS for row in rows)
    (best,) = [row for row in rows if row["published"]]
    assert [best[key] for key in ("D", "T", "P", "K", "place")] == [1, 16, 1, 1, 1]
    assert best["simulated_ms"] == min(row["simulated_ms"] for row in rows)
    assert len(table.read_text().splitlines()) == 66
    assert "MLP 1B" in capsys.readouterr().out
    assert main([*arguments, "--rows", str(table)]) == 0
    again = json.loads(path.read_text())["rows"]
    assert [{**row, "grid_s": 0} for row in again] == [{**row, "grid_s": 0} for row in rows]


def test_time_is_measured_against_layers(tmp_path, capsys, monkeypatch):
    small = replace(published_model("MLP 1B"), layers=8, width=64, name="tiny")
    monkeypatch.setattr(command, "MODELS", (small,))
    monkeypatch.setattr(grids, "MLP_BEST", (replace(MLP_BEST[0], model="tiny"),))
    path = tmp_path / "rows.json"
    assert main(["distir", "--growth", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["layers"] for row in rows] == [1, 2, 4, 8]
    assert [row["tasks"] for row in rows] == [7, 13, 25, 49]
    assert "us per task" in capsys.readouterr().out


def test_the_front_is_drawn(tmp_path):
    model = published_model("MLP 1B")
    rows = [
        SearchRow(8, Degrees(2, 8, 1, 1), STAGES, 0, 10, 2**30, 2**35),
        SearchRow(8, Degrees(1, 16, 1, 1), STAGES, 0, 5, 2**31, 2**35),
    ]
    (series,) = fronts([Grid(model, tuple(rows), 1.0)])
    assert series.points == ((1.0, 8e8), (2.0, 1.6e9))
    assert len(ranked(rows)) == 2
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, second):
        plot_fronts(path, [series])
    assert first.read_bytes() == second.read_bytes()
    with pytest.raises(HeteroPlaceError, match="nothing to plot"):
        plot_fronts(first, [])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "batch"), [("GPT-2 175B", 128), ("MLP 103B", 1024)])
def test_whole_simulations_of_the_large_grids_find_the_same(name, batch):
    chosen = [d for d in enumerate_degrees(NUM_DEVICES, batch) if d.micro_batches <= 2]
    assert len(chosen) == 15
    evaluator = Evaluator(search_problem(published_model(name), MachineFigures()))
    for degrees in chosen:
        row, whole = evaluator.row(batch, degrees), evaluator.simulated(batch, degrees)
        assert row.method == STAGES
        assert (row.makespan_ns, row.peak_bytes) == (whole.makespan_ns, whole.peak_bytes)
