"""What other programs used while costs were measured is said in the summary, and kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from relay_models import cpu_cluster
from test_output_names import model_of

import heteroplace
from heteroplace.machine.usage import QUIET_CORES, Usage
from heteroplace.measure.cost_models.cost_model import CostOptions
from heteroplace.native.compiled_file import read_manifest
from heteroplace.parts.onnx import from_onnx


def test_a_compiled_file_says_how_busy_the_machine_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Usage, "others_since", lambda self, before: 0.9)
    mod, params = from_onnx(model_of(("y",)))
    store, path = tmp_path / "costs.sqlite", tmp_path / "model.so"
    executable = heteroplace.build(mod, cpu_cluster(), params, store=str(store), verify="off")
    assert "note: Other programs used 0.9 cores while costs" in executable.summary()
    executable.export_library(path)
    assert read_manifest(path).solution.others_cores == 0.9
    # The times that the store has now were measured on the busy machine.
    monkeypatch.setattr(Usage, "others_since", lambda self, before: 0.0)
    again = heteroplace.build(mod, cpu_cluster(), params, store=str(store), verify="off")
    assert again.solution.others_cores == 0.9


def test_what_does_not_disturb_a_measurement_is_no_note() -> None:
    assert CostOptions().others_cores == 0.0
    assert CostOptions(disturbances=[QUIET_CORES]).others_cores == 0.0
    assert CostOptions(disturbances=[0.0, 1.5, 0.3]).others_cores == 1.5
