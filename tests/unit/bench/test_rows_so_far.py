"""A benchmark that fails late has written and shown what it had measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.command import main
from benchmarks.distir import command as distir
from benchmarks.distir.grids import Grid
from benchmarks.exact import command as exact
from benchmarks.place import command
from heteroplace.errors import ExecutionError
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.search_rows import STAGES, SearchRow
from zoo.graphs.catalogue import Instance


@pytest.mark.parametrize("end", [ExecutionError("kernel fell"), KeyboardInterrupt()])
def test_rows_before_a_failure_are_kept(
    end: BaseException,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def two_rows(*_: object) -> Iterator[dict[str, object]]:
        yield {"graph": "first"}
        yield {"graph": "second"}
        raise end

    monkeypatch.setattr(command, "run", two_rows)
    monkeypatch.setattr(command, "table", lambda rows: f"{len(rows)} rows")
    file = tmp_path / "rows.json"
    if isinstance(end, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            main(["place", "--json", str(file)])
    else:
        assert main(["place", "--json", str(file)]) == 1
        printed = capsys.readouterr()
        assert printed.out == "2 rows\n"
        assert printed.err == "error: kernel fell\n"
    assert json.loads(file.read_text()) == {"rows": [{"graph": "first"}, {"graph": "second"}]}


ROW = SearchRow(8, Degrees(2, 8, 1, 1), STAGES, 0, 10, 2**30, 2**35)


class Answers:
    """The solvers of a graph, without processes; the second graph cannot be built."""

    def __init__(self, graph: str, arguments: tuple[str, ...], budget_s: float) -> None:
        self._graph = graph

    def reference(self) -> command.Row:
        if self._graph == "second":
            raise ExecutionError("it cannot be built")
        keys = ("tasks", "cluster", "congestion", "best_single")
        return dict.fromkeys(keys) | {"bound": 5}

    def answers(self, names: Sequence[str], jobs: int, say: command.Say) -> list[command.Row]:
        keys = ("seconds", "cpu_seconds", "best_seconds", "incumbents", "build_seconds", "peak_mb")
        answer = dict.fromkeys((*keys, "makespan", "bound", "memory_ok"))
        return [{**answer, "note": "none"} for _ in names]


@pytest.mark.parametrize("kind", [["place"], ["exact"]])
def test_graphs_before_one_that_fails_are_kept(
    kind: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = [Instance(name, lambda: None) for name in ("first", "second")]
    cases = [exact.Case("t", graph.name, ("heft",)) for graph in graphs]
    monkeypatch.setattr(command, "Processes", Answers)
    monkeypatch.setattr(command, "select", lambda only: graphs)
    monkeypatch.setattr(exact, "all_cases", lambda: cases)
    monkeypatch.setattr(exact, "get_instance", {each.name: each for each in graphs}.get)
    monkeypatch.setattr(exact.exact_table, "tables", lambda rows: "")
    file = tmp_path / "rows.json"
    assert main([*kind, "--only", ".", "--solvers", "heft", "--json", str(file)]) == 1
    assert {row["graph"] for row in json.loads(file.read_text())["rows"]} == {"first"}


def test_grids_before_one_that_fails_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []

    def run_grid(model: object, *_: object) -> Grid:
        if done:
            raise ExecutionError("no such configuration")
        done.append(model)
        return Grid(distir.MODELS[0], (ROW,), 1.0)

    monkeypatch.setattr(distir, "run_grid", run_grid)
    file = tmp_path / "rows.json"
    assert main(["distir", "--json", str(file)]) == 1
    (row,) = json.loads(file.read_text())["rows"]
    assert row["model"] == distir.MODELS[0].name


def test_where_rows_cannot_go_is_told_before_they_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "run", lambda *_: pytest.fail("measured"))
    assert main(["place", "--json", str(tmp_path / "none" / "rows.json")]) == 1
    assert "does not exist; make it first" in capsys.readouterr().err
