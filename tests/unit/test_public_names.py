"""The face of the package: its names, its completion, and what type checkers read of it."""

from __future__ import annotations

import ast
import os
import rlcompleter
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import heteroplace
from heteroplace.option_keywords import PlaceKeywords, SearchKeywords
from heteroplace.options import options_of
from heteroplace.parts.parallel.sharding.shard_keywords import ShardKeywords
from heteroplace.parts.parallel.sharding.shard_options import ShardOptions
from heteroplace.place_options import OPTION_CLASSES
from tests.programs import run_python
from tests.unit.test_import_without_tvm import run_without_tvm

ROOT = Path(__file__).resolve().parents[2]
FACE = ROOT / "python" / "heteroplace" / "__init__.py"

# What a program calls first, and the type that it gets.
REVEALED = {
    'heteroplace.place("m.onnx", time_limit=5)': "heteroplace.model.solution.Solution",
    'heteroplace.place_workload("m.onnx", entries={})': (
        "heteroplace.model.workload_solution.WorkloadSolution"
    ),
    'heteroplace.compile("m.onnx")': "heteroplace.lower.executable.Executable",
    "heteroplace.build(tvm.IRModule())": "heteroplace.lower.executable.Executable",
    'heteroplace.load("m.so")': "heteroplace.run.executor.Executor",
    'heteroplace.load("m.so").run(x=x)': "list[numpy.ndarray",
    'heteroplace.compile("m.onnx").solution': "heteroplace.model.solution.Solution",
    'heteroplace.frontend.from_onnx("m.onnx")': (
        "heteroplace.parts.onnx.imported_model.ImportedModel"
    ),
    'heteroplace.place("m.onnx").placement': "typing.Mapping[str, str]",
    "heteroplace.local_cluster()": "heteroplace.model.cluster.Cluster",
    'heteroplace.load_solution("plan.json")': "heteroplace.model.solution.Solution",
}
# Functions, whose parameters show too.
FUNCTIONS = (
    "heteroplace.place",
    "heteroplace.place_workload",
    "heteroplace.compile",
    "heteroplace.build",
    "heteroplace.HeteroPlace",
    "heteroplace.load",
    'heteroplace.load("m.so").run',
    "heteroplace.frontend.from_onnx",
    "heteroplace.shard",
    "heteroplace.Shard",
    "heteroplace.PlaceBranches",
    "heteroplace.tune",
    'heteroplace.load_solution("plan.json").what_if',
    'heteroplace.place_workload("m.onnx", entries={}).more_memory',
)


def revealed(lines: list[str], folder: Path) -> list[str]:
    """Return what mypy says about a program of these lines, one text for each line."""
    program = folder / "program.py"
    head = ["import numpy as np", "import tvm", "import heteroplace", "x = np.ones(1)"]
    program.write_text("\n".join([*head, *lines]) + "\n")
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(program)]
    environment = {**os.environ, "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache")}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert not done.stderr, done.stderr
    texts = ["" for _ in lines]
    for line in done.stdout.splitlines():
        place, _, text = line.partition(": ")
        number = int(place.rpartition(":")[2]) - len(head) - 1
        texts[number] += text
    return texts


@pytest.mark.costly(30)
def test_a_type_checker_knows_the_type_of_every_step_of_a_program(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    calls = [f"reveal_type({call})" for call in (*REVEALED, *FUNCTIONS)]
    wrong = ['heteroplace.place("m.onnx", time_limt=5)', "heteroplace.nonsense"]
    texts = revealed(calls + wrong, tmp_path)
    for (call, expected), text in zip(REVEALED.items(), texts, strict=False):
        assert f'Revealed type is "{expected}' in text, (call, text)
    for call, text in zip(FUNCTIONS, texts[len(REVEALED) :], strict=False):
        assert 'Revealed type is "def (' in text, (call, text)
        assert "**options: Any" not in text and "*args" not in text, (call, text)
        # TVM has no types, and numpy's arrays are of any shape; all else has a type.
        assert not any(f"{name}: Any" in text for name in ("comm", "place_options", "costs")), text
    assert 'did you mean "time_limit"?' in texts[-2]
    assert 'Module has no attribute "nonsense"' in texts[-1]


def test_the_keywords_of_placing_are_the_declared_options_with_their_types() -> None:
    declared = {}
    for cls in OPTION_CLASSES:
        hints = typing.get_type_hints(cls)
        declared |= {entry.name: hints[entry.attribute] for entry in options_of(cls)}
    keywords = typing.get_type_hints(PlaceKeywords)
    for_callers = {"progress", "solver_progress"}
    assert list(declared) == [name for name in keywords if name not in for_callers]
    assert {name: keywords[name] for name in declared} == declared
    assert for_callers < set(keywords)


@pytest.mark.relay
def test_the_keywords_of_sharding_are_its_options_and_the_parts_of_degrees() -> None:
    keywords = typing.get_type_hints(ShardKeywords)
    hints = typing.get_type_hints(ShardOptions)
    declared = {entry.name: hints[entry.attribute] for entry in options_of(ShardOptions)}
    parts = {"data", "tensor", "pipeline", "micro_batches"}
    assert set(declared) | parts | {"progress"} == set(keywords)
    assert {keywords[name] for name in parts} == {int}
    # A tuple of degrees is read too; all else is as declared.
    assert keywords.pop("degrees") == declared.pop("degrees") | tuple[int, ...]
    assert {name: keywords[name] for name in declared} == declared


def test_the_keywords_of_searches_are_options_of_placing() -> None:
    search, place = typing.get_type_hints(SearchKeywords), typing.get_type_hints(PlaceKeywords)
    assert {name: place[name] for name in search} == search


def typed_names() -> list[str]:
    """Return the names that the TYPE_CHECKING block of the package imports."""
    tree = ast.parse(FACE.read_text())
    (block,) = (line for line in tree.body if isinstance(line, ast.If) and line.body[1:])
    return [
        alias.asname or alias.name
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    ]


def test_every_public_name_has_a_type() -> None:
    assert sorted(typed_names()) == sorted(heteroplace.__all__)
    assert "Any" not in FACE.read_text()


@pytest.mark.relay
def test_dir_lists_the_public_names_and_nothing_else() -> None:
    public = [name for name in dir(heteroplace) if not name.startswith("__")]
    assert public == sorted(heteroplace.__all__)
    assert {"__version__", "__doc__"} < set(dir(heteroplace))
    for name in dir(heteroplace):
        getattr(heteroplace, name)


def test_completion_offers_the_public_names() -> None:
    matches = rlcompleter.Completer({"heteroplace": heteroplace}).attr_matches("heteroplace.load_")
    assert matches == ["heteroplace.load_cluster(", "heteroplace.load_solution("]


def test_without_tvm_completion_offers_what_works() -> None:
    program = """
import rlcompleter
import heteroplace
names = rlcompleter.Completer({"heteroplace": heteroplace}).attr_matches("heteroplace.")
print(*names)
"""
    names = run_without_tvm(program).split()
    assert "heteroplace.Cluster(" in names
    assert not {"heteroplace.build(", "heteroplace.frontend"} & set(names)


def test_the_package_alone_loads_no_module_for_its_types() -> None:
    program = """
import sys
import heteroplace
print(*sys.modules)
"""
    modules = run_python(program).split()
    assert [name for name in modules if name.startswith("heteroplace")] == ["heteroplace"]
    assert not {"typing", "typing_extensions", "numpy"} & set(modules)
