"""Imports lead from a changed file to the tests that it can break, the nearest first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.reached_tests import distances, module_of, read_importers, read_names

ROOT = Path(__file__).resolve().parent.parent


def path_of(module: str) -> str:
    return f"python/{module.replace('.', '/')}.py"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A package, a library in C++, and tests of both."""
    files = {
        "python/heteroplace/__init__.py": "",
        "python/heteroplace/low.py": "",
        "python/heteroplace/high.py": "from heteroplace import (\n    low,  # a comment\n)\n",
        "python/heteroplace/entries.py": 'ENTRIES = {"high": "heteroplace.high:Solver"}\n',
        "python/heteroplace/parts/__init__.py": "from heteroplace.parts.inner import value\n",
        "python/heteroplace/parts/inner.py": "",
        "python/heteroplace/parts/outer.py": "",
        "python/heteroplace/main.py": '_PARTS = "heteroplace.parts"\n',
        "python/heteroplace/native/__init__.py": "",
        "python/heteroplace/native/lists.py": "",
        "tests/__init__.py": "",
        "tests/unit/conftest.py": "from heteroplace.low import value\n",
        "tests/unit/test_fixture.py": "",
        "tests/unit/models.py": "",
        "tests/unit/worker.py": "",
        "tests/unit/test_models.py": 'from models import small\nWORKER = "worker.py"\n',
        "tests/test_page.py": 'PAGE = ROOT / "docs" / "page.md"\n',
        "tests/test_outer.py": "from heteroplace.parts.outer import value\n",
        "tests/cpp/CMakeLists.txt": "set(PLANNING check_plan\n             check_other)\n",
        "tests/cpp/check_plan.cc": '#include "check.h"\n#include "list/plan.h"\n',
        "tests/cpp/check_run.cc": '#include "check.h"\n',
        "tests/cpp/check.h": "",
        "src/list/plan.h": "",
        "src/list/plan.cc": '#include "list/plan.h"\n',
        "src/list/deep.cc": "",
        "src/exec/run.cc": "",
        "src/support/text.cc": "",
        "docs/pages/tables.py": "",
        "tests/test_entries.py": "def test_it():\n    import heteroplace.entries as entries\n",
        "pyproject.toml": '[tool]\nseams = "heteroplace.low"\n',
        "python/heteroplace/parts/outer/entry_points.txt": (
            "[heteroplace.seams]\nlow = heteroplace.plugged:LOW\n"
        ),
        "python/heteroplace/plugged.py": "",
        "python/heteroplace/native/seam_user.py": 'PLUGINS = load_plugins("seams")\n',
        "tests/test_seam_user.py": "import heteroplace.native.seam_user\n",
        "tests/test_core.py": "from heteroplace.native.lists import schedule\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_names_are_read_from_imports_and_from_strings_of_registries() -> None:
    text = 'from a.b import (\n    c,\n    d as e,\n)\nimport f.g as h, i\nX = "heteroplace.j:K"\n'
    assert [*read_names(text)] == ["a.b", "a.b.c", "a.b.d", "f.g", "i", "heteroplace.j"]


def test_a_change_reaches_tests_through_imports_entries_and_fixtures(checkout: Path) -> None:
    steps = distances(read_importers(checkout), ["python/heteroplace/low.py", "README.md"])
    modules = ("heteroplace.", "tests.")
    assert {name: step for name, step in steps.items() if name.startswith(modules)} == {
        "heteroplace.low": 0,
        "heteroplace.high": 1,
        "heteroplace.entries": 2,
        "tests.unit.conftest": 1,
        "tests.unit.test_fixture": 2,
        "tests.unit.test_models": 2,
        "tests.test_entries": 3,
    }


def reached_by(checkout: Path, *files: str) -> set[str]:
    steps = distances(read_importers(checkout), files)
    return {name for name in steps if ".test_" in name or name.startswith("tests/cpp/check_")}


def test_a_change_of_the_core_reaches_what_calls_it(checkout: Path) -> None:
    steps = distances(read_importers(checkout), ["src/list/engine.cc"])
    assert steps["tests.test_core"] == 1
    assert "tests.test_entries" not in steps


def test_helpers_are_imported_from_the_folder_of_their_tests_and_run_by_file(
    checkout: Path,
) -> None:
    assert reached_by(checkout, "tests/unit/models.py") == {"tests.unit.test_models"}
    assert reached_by(checkout, "tests/unit/worker.py") == {"tests.unit.test_models"}


def test_a_package_that_is_named_may_load_any_of_its_modules(checkout: Path) -> None:
    steps = distances(read_importers(checkout), ["python/heteroplace/parts/outer.py"])
    assert steps["heteroplace.main"] == 1


def test_a_module_loads_the_package_around_it_first(checkout: Path) -> None:
    for changed in ("inner", "__init__"):
        file = f"python/heteroplace/parts/{changed}.py"
        assert reached_by(checkout, file) == {"tests.test_outer"}


def test_a_module_that_names_a_seam_may_load_what_plugs_into_it(checkout: Path) -> None:
    assert reached_by(checkout, "python/heteroplace/plugged.py") == {"tests.test_seam_user"}


def test_texts_and_programs_reach_the_tests_that_name_them_or_their_folder(checkout: Path) -> None:
    for file in ("docs/page.md", "docs/other/picture.svg", "other/page.md", "docs/pages/tables.py"):
        assert reached_by(checkout, file) == {"tests.test_page"}
    assert not reached_by(checkout, "other/text.md")


@pytest.mark.parametrize(
    ("file", "programs"),
    [
        ("src/list/plan.cc", {"plan": 2}),
        ("src/list/deep.cc", {"plan": 3}),
        ("src/exec/run.cc", {"run": 3}),
        ("src/support/text.cc", {"plan": 3, "run": 3}),
        ("tests/cpp/check.h", {"plan": 1, "run": 1}),
        ("tests/cpp/check_run.cc", {"run": 0}),
    ],
)
def test_programs_in_cpp_are_reached_by_what_they_include_and_link(
    checkout: Path, file: str, programs: dict[str, int]
) -> None:
    steps = distances(read_importers(checkout), [file])
    nodes = {name: f"tests/cpp/check_{name}.cc" for name in ("plan", "run")}
    assert {name: steps[node] for name, node in nodes.items() if node in steps} == programs


def test_settings_of_pytest_reach_all_tests_below_a_conftest(checkout: Path) -> None:
    steps = distances(read_importers(checkout), ["pyproject.toml"])
    assert steps["tests.unit.test_fixture"] == 2


def test_every_module_of_this_checkout_has_a_name() -> None:
    assert module_of("python/heteroplace/native/__init__.py") == "heteroplace.native"
    assert module_of("docs/index.md") is None
    importers = read_importers(ROOT)
    assert "tests.test_reached_tests" in importers["tests.reached_tests"]
    assert "tests.relay.test_hetero_place" in importers["tests.relay.relay_models"]
    assert "heteroplace.cli.main" in importers["heteroplace.parts.parallel.shard_command"]


def test_the_graph_holds_what_a_command_loads() -> None:
    importers = read_importers(ROOT)
    code = "import sys, heteroplace.cli.main as m; m.make_parser(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("heteroplace.cli.")}
    assert len(loaded) > 5
    for name in loaded - {"heteroplace.cli.main"}:
        assert "heteroplace.cli.main" in distances(importers, [path_of(name)]), name
