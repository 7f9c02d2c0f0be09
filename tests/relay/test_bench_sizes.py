"""Each benchmark in its smallest size, by its command: it measures, and has rows and a table.

The figures mean nothing. What is smallest for a family that other tests run is in `ELSEWHERE`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from heteroplace.bench import __main__ as bench

ROOT = Path(__file__).resolve().parents[2]
SMALLEST = {
    "batches": "--only ^smallest$",
    "compile": "--only ^smallest$",
    "kernels": "--only ^smallest$",
    "layouts": "--only ^smallest$",
    "profile": "--only ^smallest$",
    "recompile": "--only ^smallest$",
    "run": "--only ^smallest$",
    "run --calls": "--only ^tiny$",
    "run --choice": "--only ^smallest$",
    "run --helping": "--only ^smallest$",
    "run --in-flight": "--only ^smallest$",
    "run --peers": "--quick --only ^smallest$",
    "run --tracing": "--only ^tiny$",
    "prediction": "--only ^smallest$ --plans 1 --budget 0 --rounds 1",
    "place": "--only er10x1$ --solvers heft --budget 1",
}
"""Options of each benchmark that make it shortest."""
ELSEWHERE = {
    "conformance": "tests/relay/test_conformance.py",
    "distir": "tests/unit/bench/test_distir.py",
    "dynamic": "tests/relay/test_bench_speculation.py",
    "exact": "tests/unit/bench/test_exact.py",
    "ranks": "tests/relay/test_ranks.py",
    "tables": "tests/unit/bench/test_tables_command.py",
    "run --gpu": "tests/gpu",
}
"""Tests that run the smallest size of other benchmarks."""


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store that all share: what one has measured, the next one knows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HETEROPLACE_COSTS", str(tmp_path_factory.mktemp("costs") / "costs.sqlite"))
        yield


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("name", SMALLEST)
def test_smallest_size_has_rows_and_a_table(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    words = shlex.split(f"{name} {SMALLEST[name]}")
    assert bench.main([*words, "--json", str(file)]) == 0
    assert json.loads(file.read_text())["rows"]
    assert len(capsys.readouterr().out.splitlines()) > 1


def test_every_benchmark_has_a_smallest_size() -> None:
    names = {*bench._NEED_TVM, *bench._OF_ARGUMENTS, "exact", "place", "distir", "tables"}
    names |= {f"run --{kind}" for kind in bench._INSTEAD}
    assert names == {*SMALLEST, *ELSEWHERE}
    assert all((ROOT / path).exists() for path in ELSEWHERE.values())
