"""`benchmarks tables`: tables of the registries' graphs and solvers, resumed runs, the manifest."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.tables.command import (
    BENCH,
    MANIFEST,
    measure_missing,
    write_documents,
)
from benchmarks.tables.parts import DOCUMENTS, PLACE, THROUGHPUT, Part, all_parts
from benchmarks.tables.store import (
    Measured,
    Stamp,
    Store,
    code_stamp,
    read_manifest,
    write_manifest,
)
from benchmarks.tables.write import manifest_table, marked, part_table
from heteroplace.errors import HeteroPlaceError
from heteroplace.solve import SOLVERS
from zoo.graphs.catalogue import exact_instances, instances, published_folder

STAMP = Stamp("abc", "a processor", 2, 1.0)
GRAPH = re.compile(
    r"(?:moirai|roomy|coarse|rwnn|published|layered|hub|gpt3-decode|zoo|zoo-items)/[\w./-]+"
)


def written() -> dict[str, str]:
    """What stands between the marks of both documents, by part."""
    found: dict[str, str] = {}
    for name in DOCUMENTS:
        inner = marked((BENCH / f"{name}.md").read_text())
        found |= {f"{name} {part}" if part == "manifest" else part: inner[part] for part in inner}
    return found


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_part_has_its_place_in_a_document() -> None:
    names = {part.name for part in all_parts()}
    assert set(written()) == names | {f"{name} manifest" for name in DOCUMENTS}


def test_a_plan_that_does_not_fit_has_a_star() -> None:
    solvers = ("auto", "heft", "met")
    part = Part(THROUGHPUT, PLACE, "", ("g",), solvers, lambda *_: [])
    known = {"tasks": 3, "item_bound": 1_000_000}
    rows: list[dict[str, object]] = [
        {**known, "solver": "auto", "item_ns": 3_000_000, "memory_ok": True},
        {**known, "solver": "heft", "item_ns": 2_000_000, "memory_ok": False},
        {**known, "solver": "met", "item_ns": None, "memory_ok": False},
    ]
    line = part_table(part, {"g": Measured(STAMP, "", 1.0, 1.0, rows)}).splitlines()[-1]
    assert cells(line) == ["g", "3", "1.000", "3.000", "2.000*", "-"]


def test_rows_of_all_tables_are_graphs_and_solvers_of_the_registries() -> None:
    known = {**instances(), **exact_instances()}
    has_files = any(name.startswith("published/") for name in known)
    for name, text in written().items():
        for graph in GRAPH.findall(text):
            is_file = graph.startswith("published/") and not has_files
            assert is_file or graph in known or name in ("peers",), (name, graph)
    for name, made in read_manifest(BENCH / MANIFEST).items():
        assert set(made.solvers) <= set(SOLVERS), name


def test_tables_of_this_command_have_all_graphs_and_solvers_of_their_part() -> None:
    made = read_manifest(BENCH / MANIFEST)
    assert made, "nothing was made"
    has_files = published_folder() is not None
    for part in all_parts():
        if part.name not in made or not part.solvers:
            continue
        table, _, picture = written()[part.name].strip().partition("\n\n")
        assert (part.draw is not None) == (f"({part.picture_name})" in picture)
        lines = [cells(line) for line in table.splitlines()]
        graphs = tuple(line[0] for line in lines[2:])
        solvers = tuple(name for name in lines[0][3:] if name != "paper ms")
        assert (graphs, solvers) == (made[part.name].graphs, made[part.name].solvers)
        here = [name for name in graphs if has_files or not name.startswith("published/")]
        again = f"its registry has changed: make tables ONLY=^{part.name}/"
        assert (here, made[part.name].solvers) == (list(part.graphs), part.solvers), again


def test_the_manifests_of_the_documents_are_that_of_the_file() -> None:
    made = read_manifest(BENCH / MANIFEST)
    for name in DOCUMENTS:
        of_document = [part for part in all_parts() if part.document == name]
        expected = manifest_table(of_document, made, written())
        assert written()[f"{name} manifest"].strip() == expected


class Counted:
    """A part of two graphs, which counts what it measures."""

    def __init__(self) -> None:
        self.graphs: list[str] = []
        self.drawn: list[dict[str, object]] = []
        graphs, solvers = ("g/1", "g/2"), ("heft", "met")
        self.part = Part(
            "place-latency", PLACE, "of a test", graphs, solvers, self.measure, self.draw
        )

    def draw(self, path: Path, rows: Sequence[dict[str, object]]) -> None:
        path.write_text("picture")
        self.drawn += rows

    def measure(self, graph: str, budget_s: float, say: object) -> list[dict[str, object]]:
        self.graphs.append(graph)
        row = {"graph": graph, "tasks": 1000, "bound": 10**6, "paper": None}
        times = {"heft": 1_500_000, "met": None}
        return [{**row, "solver": name, "makespan": ns} for name, ns in times.items()]


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """A folder with both documents, in which everything is older."""
    (tmp_path / "tables").mkdir()
    for name in DOCUMENTS:
        part = "place-latency" if name == PLACE else "divi-gpt3"
        text = (
            f"# {name}\n<!-- manifest -->\n<!-- end -->\n<!-- {part} -->\nold\n<!-- end -->\nend\n"
        )
        (tmp_path / f"{name}.md").write_text(text)
    write_manifest(tmp_path / MANIFEST, {})
    return tmp_path


def test_a_run_goes_on_where_it_was_ended_and_then_replaces_the_table(documents: Path) -> None:
    counted, store = Counted(), Store(documents / "kept")
    measure_missing([counted.part], store, STAMP, "g/2", None, lambda line: None)
    (row,) = write_documents([counted.part], store, STAMP, documents)
    assert (row["measured"], row["table"]) == (1, "-")
    text = (documents / "PLACE.md").read_text()
    assert "old\n" in text and "an older run" in text
    measure_missing([counted.part], store, STAMP, None, None, lambda line: None)
    assert counted.graphs == ["g/2", "g/1"]
    (row,) = write_documents([counted.part], store, STAMP, documents)
    assert (row["measured"], row["table"]) == (2, "new")
    text = (documents / "PLACE.md").read_text()
    assert "| g/1 | 1,000 | 1.000 | 1.500 | - |\n| g/2 |" in text
    assert "![of a test](place-latency.svg)" in text and len(counted.drawn) == 4
    assert (documents / "place-latency.svg").read_text() == "picture"
    assert "old" not in text and text.endswith("<!-- end -->\nend\n")
    assert "| `place-latency` | of a test | abc | a processor | 2 | 1 | " in text
    made = read_manifest(documents / MANIFEST)["place-latency"]
    assert (made.graphs, made.solvers, made.stamp) == (("g/1", "g/2"), ("heft", "met"), STAMP)


def test_what_was_measured_under_another_stamp_is_measured_again(documents: Path) -> None:
    counted, store = Counted(), Store(documents / "kept")
    for commit in ("abc", "abc", "def"):
        stamp = Stamp(commit, *("a processor", 2, 1.0))
        measure_missing([counted.part], store, stamp, None, None, lambda line: None)
    assert len(counted.graphs) == 4
    (row,) = write_documents([counted.part], store, STAMP, documents)
    assert (row["measured"], row["table"]) == (0, "-")


def test_a_stamp_differs_with_every_change_of_the_sources(tmp_path: Path) -> None:
    sources = tmp_path / "python"
    sources.mkdir()
    (sources / "a.py").write_text("1")
    stamps = [code_stamp(sources)]
    (sources / "a.py").write_text("2")
    stamps.append(code_stamp(sources))
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    stamps.append(code_stamp(sources))
    for name, text in (("a.py", "3"), ("a.py", "4"), ("new.py", "1"), ("new.py", "2")):
        (sources / name).write_text(text)
        stamps.append(code_stamp(sources))
    assert len(set(stamps)) == len(stamps)
    assert ["+" in stamp for stamp in stamps] == [True, True, False, True, True, True, True]
    (sources / "notes.md").write_text("what is no source")
    assert code_stamp(sources) == stamps[-1]


def test_no_graph_is_begun_when_the_time_is_over(documents: Path) -> None:
    counted, said = Counted(), []
    measure_missing([counted.part], Store(documents), STAMP, None, 0.0, said.append)
    assert counted.graphs == [] and "left for the next run" in said[0]


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": []}'])
def test_a_damaged_file_of_a_graph_is_named(documents: Path, text: str) -> None:
    counted, store = Counted(), Store(documents / "kept")
    measure_missing([counted.part], store, STAMP, None, None, lambda line: None)
    path = next((documents / "kept").rglob("*.json"))
    path.write_text(text)
    with pytest.raises(HeteroPlaceError, match=re.escape(str(path))):
        measure_missing([counted.part], store, STAMP, None, None, lambda line: None)
