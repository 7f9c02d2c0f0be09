"""Benchmarks that need TVM give their rows as they are measured."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import onnx
import pytest

from benchmarks.command import main
from benchmarks.conformance import command as conformance
from benchmarks.conformance import pool
from benchmarks.conformance.cases import Case
from benchmarks.distir.runs import fits
from benchmarks.ranks import command as ranks
from heteroplace.errors import ExecutionError
from heteroplace.model.cluster import Cluster, Device, Memory


def test_a_case_over_ranks_has_the_name_by_which_it_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plan_rows(model: str, num_ranks: int, *_: object) -> list[ranks.Row]:
        if num_ranks == 4:
            raise ExecutionError("a rank fell")
        return [{"model": model, "ranks": num_ranks}]

    monkeypatch.setattr(ranks, "plan_rows", plan_rows)
    rows = iter(ranks.run(Namespace(only="plan/mobilenet_v3"), print))
    assert next(rows)["case"] == "plan/mobilenet_v3/2"
    with pytest.raises(ExecutionError):
        next(rows)


def test_cases_of_a_suite_come_in_their_order_and_faults_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Process:
        is_dead = False

        def check(self, case: Case, limit_s: float) -> tuple[str, str]:
            if case.name == "c":
                raise OSError("no more processes")
            return "equal", ""

        def stop(self) -> None:
            pass

    monkeypatch.setattr(pool, "_Process", Process)
    cases = [Case(name, "Abs", onnx.ModelProto(), [], 0.0, 0.0) for name in "abcccc"]
    rows = pool.run_cases(cases, 2, 1.0)
    assert [next(rows)["case"] for _ in range(2)] == ["a", "b"]
    with pytest.raises(OSError, match="no more processes"):
        next(rows)


def test_no_case_makes_no_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conformance, "load_cases", lambda *_: [])
    page = tmp_path / "page.md"
    with pytest.raises(SystemExit):
        main(["conformance", "--only", "none", "--page", str(page)])
    assert "--only 'none' matches no network" in capsys.readouterr().err
    assert not page.exists()


def test_degrees_fit_where_every_rank_has_room() -> None:
    memories = (Memory("ram.0", 100), Memory("ram.1", 50))
    devices = tuple(Device(f"cpu.{n}", "cpu", "llvm", 0, n, (n,)) for n in range(2))
    cluster = Cluster("ranks", memories, devices)
    assert fits([100, 50], cluster)
    assert not fits([90, 51], cluster)
