"""Each benchmark family in its smallest size, by its command: it has rows and a table.

The figures mean nothing. Only `run --gpu` is missing: it needs a GPU, and `make gpu` runs it.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_jobs import mpiexec

from benchmarks import command as bench
from benchmarks.run import busy
from benchmarks.tables.command import BENCH, DOCUMENTS, MANIFEST
from heteroplace.measure import timed_runs
from tests.short_measuring import short_measuring

SMALLEST = {
    "batches": "--only ^smallest$",
    "compile": "--only ^smallest$",
    "run": "--only ^smallest$",
    "run --peers": "--quick --only ^smallest$",
    "run --placing": "--only ^smallest$",
    "run --trained": "--only ^smallest$",
    "run --loading": "--only ^smallest$",
    "run --efforts": "--only ^smallest$",
    "run --busy": "--only ^smallest$",
    "run --requests": "--only ^smallest$",
    "run --half": "--only ^smallest$",
    "run --streams": "--only ^smallest$",
    "run --text": "--only ^smallest$",
    "run --precision": "--only ^smallest$",
    "run --few-bits": "--only ^smallest$",
    "prediction": "--only ^smallest$ --plans 1 --budget 0 --rounds 1",
    "place": "--only er10x1$ --solvers heft --budget 1",
    "conformance": "--only ^abs$ --workers 1",
    "distir": "--only '^MLP 1B$' --batches 128",
    "distir --run": "--only ^smallest$ --batches 4 --rounds 1 --quick",
    "dynamic": "--only ^smallest/zipf1$",
    "exact": "--only ^divi-module/rwnn/er10x1$ --solvers heft --budget 1",
    "exact --orders": "--only ^smallest/colocated$",
    "ranks": "--only ^message/8$",
    "serving": "--only ^smallest$",
    "tables": "--only ^divi-split/rwnn/er10x5-sdep2$ --budget 0.1 "
    "--folder {kept} --documents {kept}",
    "workloads": "--only ^smallest$",
    "tabular": "--only '^mean imputer$'",
}
"""Options of each benchmark that make it shortest; `{kept}` is a folder with the documents."""
NEEDS_A_GPU = "run --gpu"


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store that all share: what one has measured, the next one knows."""
    with pytest.MonkeyPatch.context() as patch, short_measuring():
        patch.setattr(timed_runs, "MAX_RUNS", 1)  # of a turn; rounds remain as many
        patch.setattr(busy, "LOADS", (0, 1))
        patch.setenv("HETEROPLACE_COSTS", str(tmp_path_factory.mktemp("costs") / "costs.sqlite"))
        yield


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the documents of `tables`."""
    folder = tmp_path_factory.mktemp("documents")
    for name in (*(f"{document}.md" for document in DOCUMENTS), MANIFEST):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(BENCH / name, folder / name)
    return folder


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("name", SMALLEST)
def test_smallest_size_has_rows_and_a_table(
    name: str, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "ranks":
        mpiexec()  # skips where there is none
    if name == "tabular":
        pytest.importorskip("skl2onnx")
    file = tmp_path / "rows.json"
    words = shlex.split(f"{name} {SMALLEST[name]}".format(kept=kept))
    assert bench.main([*words, "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert rows
    assert all(row.get("result", "equal") == "equal" for row in rows)
    assert len(capsys.readouterr().out.splitlines()) > 1


def test_every_benchmark_has_a_smallest_size() -> None:
    names = {*bench._NEED_TVM, *bench._OF_ARGUMENTS, "exact", "place", "distir", "tables"}
    names |= {f"run --{kind}" for kind in bench._INSTEAD} | {"distir --run", "exact --orders"}
    assert names == {*SMALLEST, NEEDS_A_GPU}


def test_networks_that_no_name_matches_are_refused_before_links_are_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["distir", "--run", "--only", "^none$"])
    assert ended.value.code == bench.USAGE
    said = capsys.readouterr().err
    assert "--only '^none$' matches no network" in said
    assert "Timing copies" not in said


def test_a_folder_without_the_documents_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["tables", "--documents", str(tmp_path)]) == 1
    assert f"--documents: {tmp_path} has no EXACT.md" in capsys.readouterr().err
