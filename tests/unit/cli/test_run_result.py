"""What `heteroplace run` prints of a run on a machine that other programs use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heteroplace.cli.models.cached_model import Program
from heteroplace.cli.run_file import Ran
from heteroplace.cli.run_result import result_json, result_text
from heteroplace.files.manifest import Manifest
from heteroplace.files.placement import Placement
from heteroplace.machine.usage import QUIET_CORES
from tests.unit.questions.worked import diamond_solution


def ran_beside(others_cores: float) -> Ran:
    outputs = {"logits": np.zeros(4, np.float32)}
    solution = diamond_solution()
    manifest = Manifest("0.0", "", Placement.of(solution, ()), (), (("logits", (4,), "float32"),))
    times_ns = (90, 100, 120)
    return Ran(solution, outputs, {"logits": "float32"}, times_ns, others_cores, manifest)


PROGRAM = Program(Path("m.so"), "m.so: a compiled file")
BUSY = "Other programs used 0.9 cores during the measured runs"


def test_a_busy_machine_is_in_the_text_and_in_json() -> None:
    busy = ran_beside(0.9)
    assert f"\nnote: {BUSY}" in result_text(PROGRAM, busy, None)
    value = result_json(PROGRAM, busy, None)
    assert value["others_cores"] == 0.9
    assert BUSY in str(value["notes"])


def test_a_machine_that_was_busy_while_costs_were_measured_is_in_both() -> None:
    solution = replace(diamond_solution(), others_cores=0.9)
    ran = replace(ran_beside(0.0), solution=solution)
    said = "Other programs used 0.9 cores while costs were measured"
    assert said in result_text(PROGRAM, ran, None)
    assert said in str(result_json(PROGRAM, ran, None)["notes"])


@pytest.mark.parametrize("others_cores", [0.0, QUIET_CORES])
def test_of_a_quiet_machine_nothing_is_said(others_cores: float) -> None:
    assert "Other programs" not in result_text(PROGRAM, ran_beside(others_cores), None)


def test_percentiles_and_the_rate_stand_beside_the_prediction() -> None:
    text = result_text(PROGRAM, ran_beside(0.0), 2)
    assert "measured 100 ns (p90 " in text and "p99 " in text
    assert "3 runs; 20,000,000 items/s" in text
    assert "predicted 10 ns" in text
