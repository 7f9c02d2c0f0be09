"""A profiling that is killed at any moment loses at most the measurement that it was making."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("profile_kills.py")


def killed_profiling(folder: Path, num_kills: int, seed: int, how: str) -> dict[str, Any]:
    command = [
        *(sys.executable, str(SCRIPT), str(folder / "costs.sqlite"), str(folder / "log")),
        *(str(num_kills), str(seed), how),
    ]
    where = os.environ | {"PYTHONPATH": str(SCRIPT.parents[2])}  # the folder of `tests`
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, check=False, env=where
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check_little_was_lost(found: dict[str, Any]) -> None:
    assert found["killed"] > 0, "no kill hit; the case tests nothing"
    # Every measurement is made once, and a kill makes at most one more to be begun again.
    assert found["begun"] <= found["total"] + found["killed"]
    assert found["kept"] == sorted(found["kept"])


@pytest.mark.slow
def test_kernels_alone_are_resumed(tmp_path: Path) -> None:
    found = killed_profiling(tmp_path, 3, 1, "alone")
    check_little_was_lost(found)
    assert found["kept"][-1] == found["total"]


@pytest.mark.costly(12)
def test_networks_in_place_are_resumed(tmp_path: Path) -> None:
    found = killed_profiling(tmp_path, 2, 2, "whole")
    check_little_was_lost(found)
    # All calls of a network are one measurement: they are made and kept together.
    calls = found["kept"][-1] // found["total"]
    assert all(kept % calls == 0 for kept in found["kept"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_many_kills_lose_little(tmp_path: Path, seed: int) -> None:
    found = killed_profiling(tmp_path, 15, seed, "alone")
    check_little_was_lost(found)
    assert found["kept"][-1] == found["total"]
