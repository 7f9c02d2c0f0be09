"""Random graphs by random options of a placement: the numbers of onnxruntime, however they run."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from random_options import Trial, draw
from test_random_onnx import graph_of

pytestmark = pytest.mark.relay

NUM_BATCHES, BATCH_SIZE = 2, 4
MANY = 300


def check_batch(kind: str, numbers: range, folder: Path) -> None:
    ways = {number: draw(Random(f"{kind} {number} options")) for number in numbers}
    trials = [Trial(graph_of(number, kind), way, folder) for number, way in ways.items()]
    said = [trial.check() for trial in trials]
    assert said.count("") > len(said) // 3, said
    num_spare = sum(trial.has_spare_memory for trial in trials)
    assert sum(trial.runs_in_less_memory for trial in trials) >= num_spare / 2


@pytest.mark.costly(30)
@pytest.mark.parametrize("batch", range(NUM_BATCHES))
@pytest.mark.parametrize("kind", ["graph", "quantised"])
def test_graphs_by_random_options(kind: str, batch: int, tmp_path: Path) -> None:
    check_batch(kind, range(batch * BATCH_SIZE, (batch + 1) * BATCH_SIZE), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["graph", "quantised"])
def test_many_graphs_by_random_options(kind: str, tmp_path: Path) -> None:
    check_batch(kind, range(NUM_BATCHES * BATCH_SIZE, MANY), tmp_path)
