"""`benchmarks distir --run` on a tiny network: all degrees planned, built and run in rounds."""

from __future__ import annotations

import json

import pytest
from relay_models import cores

from benchmarks.distir.command import table
from benchmarks.distir.rank_models import RANK_MODELS, TRAINING, smaller
from benchmarks.distir.runs import RunOptions, rank_cluster, run_all

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(cores()) < 2, reason="ranks need two cores"),
]


def test_ranks_are_cores_with_a_memory_each_and_measured_links() -> None:
    cluster = rank_cluster()
    assert [device.memory for device in cluster.devices] == [0, 1]
    assert [(link.src, link.dst) for link in cluster.links] == [(0, 1), (1, 0)]
    assert all(link.measured for link in cluster.links)


@pytest.mark.parametrize("model", RANK_MODELS, ids=lambda model: model.name)
def test_all_degrees_of_a_training_step_are_run(model) -> None:  # type: ignore[no-untyped-def]
    small = smaller(model, 2, 32, (4,))
    options = RunOptions((small,), (TRAINING,), rounds=1, turn_ns=1_000_000)
    rows = list(run_all(options, lambda line: None))
    assert json.loads(json.dumps(rows)) == rows
    found = ["/".join(str(row[key]) for key in "DTPK") for row in rows]
    assert found == ["1/1/1/1", "1/1/2/2", "1/1/2/4", "1/2/1/1", "2/1/1/1"]
    assert sum(bool(row["chosen"]) for row in rows) == 1
    for row in rows:
        for key in ("simulated_ms", "beside_ms", "measured_ms", "predicted_peak_bytes",
                    "measured_peak_bytes"):  # fmt: skip
            assert float(str(row[key])) > 0
    assert model.name in table(rows)
