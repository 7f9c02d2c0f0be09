"""A program or a command leaves no file in the working folder but those that it was asked for."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx_models import tiny_cnn

from heteroplace.cli.models.model_cache import CACHE_VARIABLE
from heteroplace.costs.store import PATH_VARIABLE
from tests.programs import run_python


def test_what_tvm_remembers_stays_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = """
import heteroplace.tvm_bridge
from tvm.contrib.pickle_memoize import memoize

calls = []

@memoize("square", save_at_exit=False)
def square(x):
    calls.append(x)
    return x * x

print(square(3), square(3), calls)
"""
    assert run_python(program) == "9 9 [3]\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.costly(6)
def test_a_command_leaves_its_output_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "home" / "cache"))
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "home" / "costs.sqlite"))
    onnx.save(tiny_cnn(), "cnn.onnx")
    words = ["compile", "cnn.onnx", "--costs", "estimate", "--budget", "1", "-o", "cnn.so"]
    run_python(f"from heteroplace.cli.main import main\nassert main({words!r}) == 0")
    left = {path.name for path in tmp_path.iterdir()}
    assert left - {"home"} == {"cnn.onnx", "cnn.so"}
